// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/runtime"
)

// The tests call the C functions in testdata/*.c, compiled by $CC or gcc, or beforehand into GOVERBS_TEST_LIBRARIES
// where no compiler runs. GOVERBS_TEST_EMULATOR runs this test program as a child process where the kernel cannot.
var (
	calls    = &runtime.Library{Name: "calls", SOName: "calls.so", Project: "rdma-core"}
	versions = &runtime.Library{Name: "versions", SOName: "versions.so"}

	libraries string // directory of the compiled libraries
)

func pathOf(file string) string { return filepath.Join(libraries, file) }

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("rapid.nofailfile", "true")
	os.Exit(func() int {
		if !runtime.OpensLibraries {
			flag.Set("test.run", "^(TestCompiler|TestStatic)$")
			return m.Run()
		}
		dir := os.Getenv("GOVERBS_TEST_LIBRARIES")
		if dir == "" {
			var err error
			if dir, err = os.MkdirTemp("", "goverbs"); err == nil {
				defer os.RemoveAll(dir)
				err = compile(dir)
				os.Setenv("GOVERBS_TEST_LIBRARIES", dir) // tests start this program again, and some kill it
			}
			if errors.Is(err, exec.ErrNotFound) {
				flag.Set("test.run", "^TestCompiler$")
				return m.Run()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "the C functions that the tests call:", err)
				return 1
			}
		}
		libraries = dir
		calls.SetPath(pathOf("calls.so"))
		versions.SetPath(pathOf("versions.so"))
		return m.Run()
	}())
}

// TestCompiler is the only test that runs without a C compiler, and it is skipped.
func TestCompiler(t *testing.T) {
	if !runtime.OpensLibraries {
		t.Skip("the tests of this package call C, and the program was built with the tag goverbs_static")
	}
	if libraries == "" {
		t.Skip("no C compiler; run make deps")
	}
}

func compile(dir string) error {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	for _, library := range [][]string{{"calls"}, {"versions", "-Wl,--version-script=testdata/versions.map"}} {
		args := append([]string{"-O2", "-shared", "-fPIC", "-o", filepath.Join(dir, library[0]+".so"),
			"testdata/" + library[0] + ".c"}, library[1:]...)
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cc, err, out)
		}
	}
	return nil
}

// cfunc is the address of a C function of the tests.
func cfunc(t testing.TB, name string) uintptr {
	t.Helper()
	address, err := calls.Symbol(name)
	if err != nil || address == 0 {
		t.Fatalf("%s: address %#x, %v", name, address, err)
	}
	return address
}

func function(name string) *runtime.Function { return &runtime.Function{Library: calls, Name: name} }

// child runs one test in a child process with GOVERBS_TEST_CHILD set to name, and returns its output and its exit
// error.
func child(t *testing.T, test, name string) (string, error) {
	t.Helper()
	words := append(strings.Fields(os.Getenv("GOVERBS_TEST_EMULATOR")), os.Args[0], "-test.run=^"+test+"$",
		"-test.timeout=20s")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "GOVERBS_TEST_CHILD="+name)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var childOf = os.Getenv("GOVERBS_TEST_CHILD")
