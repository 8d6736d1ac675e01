// SPDX-License-Identifier: BSD-2-Clause

package stress

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// machine is a machine for the tests of package runtime: this one, or an emulated one in qemu's user mode.
type machine struct {
	name, arch, gnu, qemu string
	rare                  bool // only in make test-all: other machines cover it
	flags, env            []string
}

var arm64 = machine{name: "arm64", arch: "arm64", gnu: "aarch64-linux-gnu", qemu: "qemu-aarch64"}

var machines = []machine{
	{name: "the slow way", arch: runtime.GOARCH, flags: []string{"-tags=goverbs_slow"}},
	{name: "a full traceback", rare: true, arch: runtime.GOARCH, env: []string{"GOVERBS_FULL_TRACEBACK=1"}},
	arm64,
	{name: "ppc64le", rare: true, arch: "ppc64le", gnu: "powerpc64le-linux-gnu", qemu: "qemu-ppc64le"},
	// Debian's loader is not where purego expects it
	{name: "riscv64", rare: true, arch: "riscv64", gnu: "riscv64-linux-gnu", qemu: "qemu-riscv64",
		flags: []string{"-ldflags=-I=/lib/ld-linux-riscv64-lp64d.so.1"}},
}

func (m machine) cc() string {
	if m.arch == runtime.GOARCH {
		return "gcc"
	}
	return m.gnu + "-gcc"
}

// emulator returns the command that runs the machine's programs; empty for this machine.
func (m machine) emulator(t *testing.T) []string {
	t.Helper()
	if m.arch == runtime.GOARCH {
		return nil
	}
	emulator, err := exec.LookPath(m.qemu)
	if err != nil {
		t.Skip(err, "; make deps installs qemu-user")
	}
	return []string{emulator, "-L", "/usr/" + m.gnu}
}

// TestMachines runs the tests of package runtime on every machine, and with GOVERBS_EVERYTHING those of rdma.
func TestMachines(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("builds and runs tests for other machines; GOVERBS_LONG=1, which make test sets, runs it")
	}
	for _, m := range machines {
		t.Run(m.name, func(t *testing.T) {
			needEverything(t, m.rare)
			t.Parallel()
			emulator := m.emulator(t)
			dir := filepath.Dir(produce(t, m.name+"/calls.so", nil, m.cc(), "-O2", "-shared", "-fPIC", "-o", "OUT",
				"../../runtime/testdata/calls.c"))
			produce(t, m.name+"/versions.so", nil, m.cc(), "-O2", "-shared", "-fPIC", "-o", "OUT",
				"../../runtime/testdata/versions.c", "-Wl,--version-script=../../runtime/testdata/versions.map")
			produce(t, m.name+"/libdevice.so", nil, m.cc(), "-O2", "-shared", "-fPIC", "-o", "OUT",
				"../../rdma/testdata/device.c")
			env := append(m.env, "GOVERBS_TEST_LIBRARIES="+dir, "GOVERBS_TEST_EMULATOR="+strings.Join(emulator, " "),
				"GOVERBS_ROUNDS=200")
			tests := func(name, passes string, flags ...string) (output string) {
				program := produce(t, m.name+"/"+path.Base(name)+".test", []string{"CGO_ENABLED=0", "GOARCH=" + m.arch},
					"go", slices.Concat([]string{"test", "-c", "-vet=off", "-o", "OUT"}, m.flags,
						[]string{module + "/" + name})...)
				words := append([]string{"-C", "../../" + name}, emulator...) // some tests read the sources
				words = append(append(words, program, "-test.v", "-test.timeout=10m"), flags...)
				out, err := command(t, 11*time.Minute, env, "env", words...)
				require.NoError(t, err, out)
				assert.Contains(t, out, "--- PASS: "+passes)
				return out
			}
			flags, objects := []string{"-rapid.checks=50"}, []string{"-rapid.checks=50"}
			if len(emulator) > 0 {
				// set-uid programs do not run under qemu, and a test compiles for this machine
				flags = append(flags, "-test.skip=^TestMoreRightsThanTheUser$")
				objects = append(objects, "-test.skip=^TestSoftDeviceFromEnvironment$")
			}
			assert.NotContains(t, tests("runtime", "TestProgramsMatchModel", flags...), "--- SKIP")
			if !everything { // steps 32 and static run the tests of rdma with slow calls
				return
			}
			out := tests("rdma", "TestManyGoroutines", objects...)
			for _, skipped := range regexp.MustCompile(`(?m)^.*\n--- SKIP.*`).FindAllString(out, -1) {
				t.Log(skipped)
			}
		})
	}
}

// TestStormsOnARM runs the worker for arm64, with and without cgo. Wrong assembly shows up in TestMachines already, and
// other failures under storms also on this machine.
func TestStormsOnARM(t *testing.T) {
	needEverything(t, true)
	library := "-library=" + queueLibrary(t, arm64.cc())
	for _, b := range []build{
		{name: "arm64", env: []string{"CGO_ENABLED=0", "GOARCH=arm64"}},
		{name: "arm64-cgo", env: []string{"CGO_ENABLED=1", "GOARCH=arm64", "CC=" + arm64.cc()}},
	} {
		t.Run(b.name, func(t *testing.T) {
			storms(t, append(arm64.emulator(t), b.worker(t), library)...)
		})
	}
}
