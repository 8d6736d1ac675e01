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

// everything enables variants that take minutes to compile or emulate and rarely find anything new: make test-all.
var everything = os.Getenv("GOVERBS_EVERYTHING") != ""

func needEverything(t *testing.T, rare bool) {
	t.Helper()
	if rare && !everything {
		t.Skip("make test-all runs it")
	}
}

// build is a way to build the worker.
type build struct {
	name  string
	rare  bool // needs a separate compilation of the libraries
	env   []string
	flags []string
}

// builds for this machine: without cgo; with cgo and the race detector, which also checks our use of pointers; and with
// pointer checks only. PIE changes addressing.
var builds = []build{
	{name: "plain", env: []string{"CGO_ENABLED=0"}},
	{name: "race", env: []string{"CGO_ENABLED=1"}, flags: []string{"-race"}},
	{name: "checkptr", rare: true, env: []string{"CGO_ENABLED=0"},
		flags: []string{"-gcflags=" + module + "/...=-d=checkptr"}},
	{name: "cgo", rare: true, env: []string{"CGO_ENABLED=1"}},
	{name: "pie", rare: true, env: []string{"CGO_ENABLED=0"}, flags: []string{"-buildmode=pie"}},
}

var built sync.Map // file → *sync.Once

// produce runs a command, once, that creates a file in the tests' directory. OUT in its arguments is the file's path.
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
		t.Skip(err, "; make deps installs it")
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

// command runs a program and returns its output. It is killed after limit.
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
