// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// unsupportedHere lists tests of conformance/vm/objects that cannot pass here, with the reason. Those marked foreign
// cannot pass when the processor is emulated.
var unsupportedHere = []struct {
	test, why string
	foreign   bool
}{
	{"TestGIDsOfVLANs", "the adapter has no network device", false},
	{"TestGIDsOfNamespaces", "the adapter has no network device", false},
	{"TestMulticast", "the adapter has no network device", false},
	{"TestGIDsAndGUIDsAsInSysfs", "it reads /sys, regardless of SYSFS_PATH", false},
	{"TestResizedSRQ", "mlx5 does not resize shared receive queues", false},
	{"TestManyQueuePairs", "a queue pair is closed while the device still works on its request", false},
	{"TestUnsupportedObjects", "it lists what Soft-RoCE lacks", false},
	{"TestCacheOfChangedMemory", "registration does not pin memory here: the device uses current mappings", false},
	{"TestCacheOfGoMemory", "registration does not pin memory here: the device uses current mappings", false},
	{"TestRegistrationSpeed", "it would measure this emulation", false},
	{"TestCacheStorm", "the emulator lacks userfaultfd, so nothing is cached", true},
}

// notOnERDMA lists additional tests that cannot pass for liberdma.
var notOnERDMA = []struct{ test, why string }{
	{"TestCloseWithSharedReceives", "shared receive queues are not supported"},
	{"TestCapacityIsRequestedSize", "shared receive queues are not supported"},
	{"TestConnectAgain", "a queue pair does not go back to RESET"},
	{"TestDrain.*", "they drain queue pairs that do not count requests, or of other types"},
	{"TestWindows", "windows are not supported"},
}

// TestIdentity checks with random requests, receives and completions that the data path in Go writes the same queues,
// doorbell records and doorbells as libmlx5, and reads completions like it.
func TestIdentity(t *testing.T) {
	lists := fewLists
	if os.Getenv(envAll) != "" {
		lists = manyLists
	}
	identity(t, emulated(t), lists)
}

// fewLists is the number of lists in each run. It is sufficient to cover each kind of request and list.
const fewLists = 24_000

// Numbers of lists in slow tests, with a native and with an emulated processor; GOVERBS_LISTS overrides both.
const (
	manyLists    = 10_000_000
	foreignLists = 1_000_000
)

func identity(t *testing.T, e *Emulated, lists int) {
	t.Helper()
	if n := os.Getenv("GOVERBS_LISTS"); n != "" {
		var err error
		lists, err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	program := testProgram(t, e, "../../rdma/internal/direct")
	for _, size := range []string{"64", "128"} { // size of a completion
		seed := rand.Uint64()
		cmd := e.Command(t.Context(), program, "-test.v", "-test.run=^TestIdentity", "-test.timeout=2h")
		cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_STILL=1", "GOVERBS_IDENTITY_LISTS="+strconv.Itoa(lists/2),
			"GOVERBS_IDENTITY_SEED="+strconv.FormatUint(seed, 10), "MLX5_CQE_SIZE="+size)
		if e.libraries.Release < "64" {
			cmd.Env = append(cmd.Env, "GOVERBS_IDENTITY_OLD=1")
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s bytes, seed %d: %s", size, seed, out)
		for _, planted := range []string{"", "Planted", "PlantedRequests", "PlantedReceives", "PageFault"} {
			assert.Contains(t, string(out), "--- PASS: TestIdentity"+planted+" (")
		}
		t.Logf("%s", out)
	}
}

// testProgram builds the tests of a package for the libraries' architecture.
func testProgram(t *testing.T, e *Emulated, pkg string) string {
	t.Helper()
	program := filepath.Join(dir, filepath.Base(pkg)+"-"+e.libraries.Arch+".test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "GOARCH="+e.libraries.Arch)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestObjectSuite runs the object tests, which were written for Soft-RoCE in guests, over libmlx5 and over the data
// path in Go.
func TestObjectSuite(t *testing.T) {
	for _, path := range []string{pathC, pathGo} {
		t.Run(path, func(t *testing.T) { objectSuite(t, emulated(t), path) })
	}
}

// TestObjectSuiteMLX4 runs the object tests over libmlx4.
func TestObjectSuiteMLX4(t *testing.T) {
	slow(t)
	objectSuite(t, emulated(t).As(MLX4), pathMLX4)
}

// TestObjectSuiteERDMA runs the object tests over liberdma.
func TestObjectSuiteERDMA(t *testing.T) {
	slow(t)
	objectSuite(t, emulated(t).As(ERDMA), pathERDMA)
}

func objectSuite(t *testing.T, e *Emulated, path string) {
	t.Helper()
	program := testProgram(t, e, "../vm/objects")
	var skip []string
	for _, n := range unsupportedHere {
		if !n.foreign || e.libraries.foreign() {
			skip = append(skip, "^"+n.test+"$")
		}
	}
	least := 10
	if path == pathERDMA {
		for _, n := range notOnERDMA {
			skip = append(skip, "^"+n.test+"$")
		}
		least = 7
	}
	runSuite(t, e, path, least, program, "-test.skip="+strings.Join(skip, "|"))
}

// runSuite runs tests that were written for guests with the emulated kernel and a library.
func runSuite(t *testing.T, e *Emulated, path string, least int, program string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := e.Command(ctx, program, append(args, "-test.v", "-test.timeout=4m")...)
	cmd.Env = append(cmd.Env, wire.EnvGuest+"=6.1", wire.EnvDevice+"="+e.adapter.Device,
		wire.EnvAddress+"="+e.adapter.address(), wire.EnvLibrary+"="+e.libraries.Release,
		wire.EnvCounts+"="+filepath.Join(t.TempDir(), "counts"))
	if path == pathGo {
		cmd.Env = append(cmd.Env, wire.EnvPath+"=mlx5")
	}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	assert.Greater(t, strings.Count(string(text), "\n--- PASS"), least)
	if path != pathERDMA { // the tests for it try unsupported types and states
		assert.NotContains(t, string(text), "emulated "+e.adapter.Name+": ",
			"the emulation reported an unsupported request")
	}
}
