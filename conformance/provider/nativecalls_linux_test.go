// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/provider/kernel"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/native"
	_ "github.com/goverbs/goverbs/rdma/native/efa"
	_ "github.com/goverbs/goverbs/rdma/native/mlx5"
)

// pathNative is package native without libibverbs; pathNativeGo is mlx5.NewPath on its devices.
const (
	pathNative   = "native"
	pathNativeGo = "native, Go"
)

const envNative = "GOVERBS_CALLS_NATIVE"

// backend returns package native over the emulated kernel.
func backend(t *testing.T) *native.Backend {
	t.Helper()
	k, err := kernel.Open()
	require.NoError(t, err)
	b, err := native.New(k)
	require.NoError(t, err)
	return b
}

// from returns the library of a program: libibverbs or package native.
func from(t *testing.T) verbs.From {
	if os.Getenv(envNative) != "" {
		return verbs.From{Backend: backend(t)}
	}
	return verbs.From{}
}

// differences lists requests that only one of libmlx5 (or libefa) and package native makes, by the beginning of their
// records.
var differences = []struct {
	adapter string
	of      *regexp.Regexp
	why     string
}{
	{"mlx5", regexp.MustCompile(`^object ([0-689a-d]|1[0-9a-f]|7, method [1-9a-f])`), "libibverbs tries the methods of a kernel that has one for " +
		"each command; native sends commands by INVOKE_WRITE, which all kernels have"},
	{"mlx5", regexp.MustCompile(`^object 1000,`), "libmlx5 asks for capabilities that the data path does not use"},
	{"mlx5", regexp.MustCompile(`^command (1|2|80000001),`), "queries of the device and of ports change nothing; " +
		"libmlx5 makes some when it opens the device, and native where it needs them"},
	{"mlx5", regexp.MustCompile(`^command 0,.*\n.*\n  driver, (16|24) bytes:`), "libmlx5 tries the requests of old " +
		"kernels"},
	{"efa", regexp.MustCompile(`^object [0-9a-f]{1,2},`), "as for mlx5"},
	{"efa", regexp.MustCompile(`^command 2,`), "native asks for the port before it reads a GID"},
}

// responseAddress matches the first word of a command with a response: the address of the response, which INVOKE_WRITE
// does not read.
var responseAddress = regexp.MustCompile(`(command [0-7]?[0-9a-f]{1,7}, answers of [1-9].*\n` +
	`  core, [0-9]+ bytes:)( (0|address))?`)

// requests returns the requests of a record without differences, and counts the differences.
func requests(adapter Adapter, record string, found []int) string {
	var kept []string
	for _, entry := range regexp.MustCompile(`(?m)^\S.*\n(  .*\n)*`).FindAllString(record, -1) {
		keep := true
		for i, d := range differences {
			if d.adapter == adapter.Name && d.of.MatchString(entry) {
				found[i]++
				keep = false
			}
		}
		if keep {
			kept = append(kept, entry)
		}
	}
	return responseAddress.ReplaceAllString(strings.Join(kept, ""), "$1")
}

// TestNativeCalls checks that a Go program over package native and a C program over libibverbs that make the same calls
// send the same requests to the kernel, apart from differences, leave identical queues and doorbells, and read
// identical completions.
func TestNativeCalls(t *testing.T) {
	if kind := os.Getenv(envInside); kind != "" {
		insideCalls(t, kind)
		return
	}
	seeds := 3
	if os.Getenv(envAll) != "" {
		seeds = 10
	}
	found := make([]int, len(differences))
	for _, e := range releases(t) {
		nativeCalls(t, e, seeds, found)
	}
	for i, d := range differences {
		assert.NotZero(t, found[i], "%s: %s: nothing differs", d.adapter, d.why)
	}
}

// nativeCalls compares the calls for a number of seeds, and counts differences in found.
func nativeCalls(t *testing.T, e *Emulated, seeds int, found []int) {
	t.Helper()
	words := [][]string{{compile(t, e, "calls")}, {testProgram(t, e, "."), "-test.run=^TestNativeCalls$"}}
	for _, run := range []struct {
		kind string
		on   Adapter
	}{{"rc", MLX5}, {"ud", MLX5}, {"xrc", MLX5}, {"ud", EFA}, {"srd", EFA}} {
		for range seeds {
			for _, live := range []string{"", "live"} {
				compareNative(t, e, words, run.on, run.kind, live, found)
			}
			compareNative(t, e, words, run.on, run.kind, "live", found, envCompletionSize+"128")
		}
	}
}

func compareNative(t *testing.T, e *Emulated, words [][]string, on Adapter, kind, live string, found []int,
	env ...string) {
	t.Helper()
	seed := strconv.FormatUint(uint64(rand.Uint32()), 10)
	record, results := filepath.Join(dir, "record"), filepath.Join(dir, "results")
	var texts [2][2]string
	for i, w := range words {
		if i == 0 {
			w = []string{w[0], kind, seed, live}[:3+len(live)/4]
		}
		cmd := e.As(on).Command(t.Context(), w[0], w[1:]...)
		cmd.Env = append(cmd.Env, "GOVERBS_RECORD="+record, envInside+"="+kind, envSeed+"="+seed, envLive+"="+live,
			envResults+"="+results, envNative+"=1")
		cmd.Env = append(cmd.Env, env...)
		if live == "" {
			cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_STILL=1")
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		texts[i] = [2]string{requests(on, read(t, record), found), string(out)}
	}
	texts[1][1] = read(t, results)
	for j, what := range []string{"the kernel was asked, and the queues", "each call gave"} {
		require.Equal(t, texts[0][j], texts[1][j], "%s, %s, release %s, seed %s: what %s, by libibverbs and by native",
			on.Name, kind, e.libraries.Release, seed, what)
	}
	assert.Greater(t, strings.Count(texts[0][0], "command"), 10)
	assert.Greater(t, strings.Count(texts[0][1], "\n"), 30)
	assert.Regexp(t, "queue pair 25[678]\n", texts[0][0])
}
