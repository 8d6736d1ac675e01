// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/headers"
)

// envInside marks a process over the emulated kernel and selects its data path: libmlx5's, or the one in Go.
const envInside = "GOVERBS_PROVIDER_INSIDE"

// envAll also enables slow tests.
const envAll = "GOVERBS_PROVIDERS"

const (
	pathC   = "libmlx5"
	pathGo  = "Go"
	pathEFA = "libefa"

	pathMLX4 = "libmlx4"

	pathERDMA = "liberdma"

	pathIRDMA = "libirdma"
)

var dir string // directory for binaries that the tests build

func TestMain(m *testing.M) {
	const shared = "GOVERBS_PROVIDER_TESTS" // directory of processes that tests start and may kill
	os.Exit(func() int {
		if dir = os.Getenv(shared); dir == "" {
			var err error
			if dir, err = os.MkdirTemp("", "goverbs-provider"); err != nil {
				panic(err)
			}
			defer os.RemoveAll(dir)
			os.Setenv(shared, dir)
		}
		return m.Run()
	}())
}

var build = sync.OnceValues(func() (*Emulated, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	libraries, err := Open(ctx, headers.Primary("rdma-core"))
	if err != nil {
		return nil, err
	}
	return Build(ctx, libraries, dir)
})

// emulated returns the emulated kernel with the primary release's libraries. Without a C compiler or the libraries it
// skips the test, or fails it if GOVERBS_VM is set, as in make test.
func emulated(t *testing.T) *Emulated {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler: make deps installs one")
	}
	e, err := build()
	if os.Getenv("GOVERBS_VM") == "" && (errors.Is(err, ErrNoArchive) || errors.Is(err, errors.ErrUnsupported)) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return e
}

// output runs a program and returns its output.
func output(t *testing.T, e *Emulated, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := e.Command(ctx, program, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// inside runs a test again in a process over the emulated kernel, once for each data path. In that process it returns
// true.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	for _, path := range []string{pathC, pathGo} {
		again(t, emulated(t), path)
	}
	return false
}

// insideReleases is like inside with one data path, and also runs older releases if slow tests are enabled.
func insideReleases(t *testing.T, path string) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	for _, e := range releases(t) {
		again(t, e, path)
	}
	return false
}

// releases returns the emulated kernel with the primary release's libraries and, if slow tests are enabled, with those
// of older ones.
func releases(t *testing.T) []*Emulated {
	t.Helper()
	all := []*Emulated{emulated(t)}
	if os.Getenv(envAll) != "" {
		for _, release := range []string{"56.1", "44.0"} {
			all = append(all, emulatedFor(t, release, goruntime.GOARCH))
		}
	}
	return all
}

// insideMLX is like inside, and also runs libmlx4.
func insideMLX(t *testing.T) bool {
	t.Helper()
	if inside(t) {
		return true
	}
	again(t, emulated(t).As(MLX4), pathMLX4)
	return false
}

// again runs a test in a process over an emulated kernel.
func again(t *testing.T, e *Emulated, path string, env ...string) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := e.Command(ctx, program, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=100s")
	cmd.Env = append(append(cmd.Env, envInside+"="+path), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", path, out)
	assert.Contains(t, string(out), "--- PASS: "+t.Name())
	if testing.Verbose() {
		t.Logf("%s: %s", path, out)
	}
}

// compile builds a program of testdata.
func compile(t *testing.T, e *Emulated, name string) string {
	t.Helper()
	program := filepath.Join(dir, name+"-"+e.libraries.Arch+"-"+e.libraries.Release)
	libraries := []string{"libefa.so.1", "librdmacm.so.1"}
	if name == "dynamic" {
		libraries = []string{"libmlx5.so.1"}
	}
	args := []string{"testdata/" + name + ".c", e.Libverbs(), "-Wl,--allow-shlib-undefined",
		"-Wl,--unresolved-symbols=ignore-in-shared-libs"}
	for _, library := range libraries {
		args = append(args, filepath.Join(e.libraries.dir(), library))
	}
	require.NoError(t, e.Compile(t.Context(), program, args...))
	return program
}

// TestC runs a C program that sends, writes, reads, and gets errors and events through libibverbs and libmlx5.
func TestC(t *testing.T) {
	e := emulated(t)
	program := compile(t, e, "pingpong")
	for _, kind := range []string{"rc", "uc"} {
		assert.Contains(t, output(t, e, program, kind), kind+": fine")
		assert.Contains(t, output(t, e.As(MLX4), program, kind), kind+": fine")
	}
	assert.Contains(t, output(t, e.As(ERDMA), program, "rc"), "rc: fine")
}

// TestPure checks that posting, polling and arming make no system calls, print nothing, and use little stack, as
// rdma/internal/provider states for mlx5 and efa. That is why Go calls them without its scheduler.
func TestPure(t *testing.T) { pure(t, emulated(t)) }

func pure(t *testing.T, e *Emulated) {
	t.Helper()
	program := compile(t, e, "pure")
	var rows []row
	for _, run := range []struct {
		kind  string
		on    Adapter
		verbs int
	}{{"rc", MLX5, 7}, {"rc", MLX4, 7}, {"rc", ERDMA, 7}, {"ud", EFA, 8}, {"srd", EFA, 9}} {
		var lines int
		for line := range strings.Lines(output(t, e.As(run.on), program, run.kind)) {
			lines++
			stack, call, _ := strings.Cut(strings.TrimSpace(line), " ")
			assert.Less(t, number(t, stack), mostStack, "bytes of stack that %s takes", call)
			rows = append(rows, row{e.libraries.Release, run.on.Name, call + " (" + run.kind + ")", stack, "0"})
		}
		assert.Equal(t, run.verbs, lines, "verbs called on %s", run.kind)
	}
	if e.libraries.Arch == "amd64" {
		compareRows(t, e.libraries.Release, rows)
	}
}

// slow skips a test that takes minutes unless make providers runs it.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv(envAll) == "" {
		t.Skip("slow: make providers and make test-all run it")
	}
}

// TestReleases runs the same programs with libraries of older releases, including their C libraries, and with those of
// arm64 under an emulator.
func TestReleases(t *testing.T) {
	slow(t)
	for _, arch := range []string{"amd64", "arm64"} {
		for _, release := range []string{"65.0", "56.1", "44.0"} {
			if arch == goruntime.GOARCH && release == headers.Primary("rdma-core") {
				continue // the other tests cover it
			}
			t.Run(arch+"/"+release, func(t *testing.T) { releaseSuite(t, emulatedFor(t, release, arch)) })
		}
	}
}

var builtFor = map[string]*Emulated{} // release and architecture → kernel

// emulatedFor is like emulated, for a release and an architecture.
func emulatedFor(t *testing.T, release, arch string) *Emulated {
	t.Helper()
	of := release + "-" + arch
	if e := builtFor[of]; e != nil {
		return e
	}
	libraries, err := OpenFor(t.Context(), release, arch)
	if errors.Is(err, ErrNoArchive) && os.Getenv("GOVERBS_VM") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	e, err := Build(t.Context(), libraries, filepath.Join(dir, of))
	require.NoError(t, err)
	builtFor[of] = e
	return e
}

// TestARM64 runs the primary release's libmlx5 and libefa for arm64 under an emulator: C and Go programs, and some
// lists through the data path in Go. TestReleases runs everything.
func TestARM64(t *testing.T) {
	if goruntime.GOARCH == "arm64" {
		t.Skip("covered by the other tests")
	}
	for _, tool := range []string{machines["arm64"].emulator, machines["arm64"].triplet + "-gcc"} {
		if _, err := exec.LookPath(tool); err != nil && os.Getenv("GOVERBS_VM") == "" {
			t.Skipf("%v: make deps installs it", err)
		}
	}
	e := emulatedFor(t, headers.Primary("rdma-core"), "arm64")
	program := compile(t, e, "pingpong")
	for _, kind := range []string{"rc", "uc"} {
		assert.Contains(t, output(t, e, program, kind), kind+": fine")
	}
	efaSuite(t, e)
	sameDynamic(t, e, pathC, 1)
	sameDynamic(t, e, pathNative, 1)
	sameBuilders(t, e, 1)
	identity(t, e, fewLists)
}

func releaseSuite(t *testing.T, e *Emulated) {
	t.Helper()
	program := compile(t, e, "pingpong")
	for _, kind := range []string{"rc", "uc"} {
		assert.Contains(t, output(t, e, program, kind), kind+": fine")
		assert.Contains(t, output(t, e.As(MLX4), program, kind), kind+": fine")
	}
	assert.Contains(t, output(t, e.As(ERDMA), program, "rc"), "rc: fine")
	lists := manyLists
	if e.libraries.foreign() {
		lists = foreignLists
	} else {
		pure(t, e)
	}
	posting(t, e)
	efaSuite(t, e)
	tagSuite(t, e)
	if !e.libraries.foreign() { // under processor emulation, loading Python's modules takes minutes and may hang
		pyverbsSuite(t, e)
	}
	if e.libraries.Arch == "amd64" {
		programs(t, e, "ibverbs-utils", filepath.Join(e.libraries.Root, "usr", "bin"))
	}
	mlx4Suite(t, e)
	erdmaSuite(t, e)
	if e.libraries.foreign() { // the other tests of package native run older releases themselves
		nativeCalls(t, e, 1, make([]int, len(differences)))
		nativeObjects(t, e)
		sameDynamic(t, e, pathC, 1)
		sameDynamic(t, e, pathNative, 1)
	} else {
		sameCalls(t, e, 30)
	}
	objectSuite(t, e, pathC)
	objectSuite(t, e, pathGo)
	streamSuite(t, e, pathC)
	streamSuite(t, e, pathGo)
	rsockets(t, e)
	objectSuite(t, e.As(MLX4), pathMLX4)
	identity(t, e, lists)
}
