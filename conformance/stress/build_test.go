// SPDX-License-Identifier: BSD-2-Clause

package stress

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const module = "github.com/goverbs/goverbs"

var dir string // for binaries that the tests build

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if dir, err = os.MkdirTemp("", "goverbs-stress"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		return m.Run()
	}())
}

// everything enables the variants that take minutes to compile or emulate and rarely find new bugs. make test-all sets
// it.
var everything = os.Getenv("GOVERBS_EVERYTHING") != ""

func needEverything(t *testing.T, rare bool) {
	t.Helper()
	if rare && !everything {
		t.Skip("slow variant: run make test-all")
	}
}

// build is a way to build the worker.
type build struct {
	name  string
	rare  bool // runs only in make test-all, because it compiles all packages again
	env   []string
	flags []string
}

// builds are the builds for this machine. The race detector also enables checkptr, which build checkptr has alone. pie
// uses position-independent addressing.
var builds = []build{
	{name: "plain", env: []string{"CGO_ENABLED=0"}},
	{name: "race", env: []string{"CGO_ENABLED=1"}, flags: []string{"-race"}},
	{name: "checkptr", rare: true, env: []string{"CGO_ENABLED=0"},
		flags: []string{"-gcflags=" + module + "/...=-d=checkptr"}},
	{name: "cgo", rare: true, env: []string{"CGO_ENABLED=1"}},
	{name: "pie", rare: true, env: []string{"CGO_ENABLED=0"}, flags: []string{"-buildmode=pie"}},
}

var built sync.Map // file → *sync.Once

// produce runs a command that creates a file in dir, and returns the file's path, which replaces OUT in the arguments.
// The command runs once per test binary. If it is not installed, the test is skipped.
func produce(t *testing.T, file string, env []string, name string, args ...string) string {
	t.Helper()
	once, _ := built.LoadOrStore(file, &sync.Once{})
	path := filepath.Join(dir, file)
	once.(*sync.Once).Do(func() {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		args[slices.Index(args, "OUT")] = path
		if _, err := exec.LookPath(name); err != nil {
			return
		}
		out, err := command(t, 15*time.Minute, env, name, args...)
		require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	})
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%v; run make deps", err)
	}
	require.FileExists(t, path)
	return path
}

func (b build) worker(t *testing.T) string {
	t.Helper()
	args := append([]string{"build", "-o", "OUT"}, b.flags...)
	return produce(t, "worker-"+b.name, b.env, "go", append(args, module+"/conformance/stress/worker")...)
}

func queueLibrary(t *testing.T, cc string) string {
	t.Helper()
	return produce(t, cc+"/queue.so", nil, cc, "-O2", "-shared", "-fPIC", "-pthread", "-o", "OUT",
		"testdata/queue.c", "testdata/device.c")
}

// command runs a program, kills it after limit, and returns its combined output.
func command(t *testing.T, limit time.Duration, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), err
}
