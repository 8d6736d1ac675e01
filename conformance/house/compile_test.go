// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/house/targets"
)

// TestEveryTarget type-checks the generated packages, the call layer and packages above it for every GOOS and GOARCH.
// Targets without C must compile; calls return an error there. On 64-bit Linux the check includes layout assertions for
// each target, and so does the check of generated/freebsd on FreeBSD. make test-all checks all packages for all targets.
// Otherwise, Linux targets with identical files and type sizes are checked once apart from layouts, and one target of
// each other system. Without GOVERBS_LONG, which make test sets, only four targets are checked, and generated/freebsd.
func TestEveryTarget(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "tool", "dist", "list").Output()
	require.NoError(t, err)
	all := strings.Fields(string(out))
	require.Greater(t, len(all), 40)
	var packages []string
	for _, p := range list(t, "./generated/...", "./runtime", "./rdma/...") {
		name, ours := folderOf(p.ImportPath)
		require.True(t, ours)
		packages = append(packages, name)
	}
	require.Subset(t, packages, append([]string{"runtime", "rdma", "rdma/soft", "rdma/cm"}, append(nouns, verbs...)...))
	checker, err := targets.New("../..")
	require.NoError(t, err)
	seen := map[string]bool{}
	long := os.Getenv("GOVERBS_LONG") != ""
	if !long {
		all = []string{"linux/386", "linux/arm64", "windows/amd64", "darwin/arm64", "freebsd/amd64", "freebsd/arm64"}
	}
	for _, target := range all {
		goos, goarch, _ := strings.Cut(target, "/")
		if goos == "plan9" { // its package syscall has no error numbers
			continue
		}
		same, these := goos, packages
		if goos == "linux" {
			own, err := checker.Own(goos, goarch, packages...)
			require.NoError(t, err)
			same += own
		}
		switch again := seen[same] && os.Getenv("GOVERBS_EVERYTHING") == ""; {
		case again && goos == "linux":
			these = nouns
		case (again || !long) && len(foreign[goos]) > 0:
			these = foreign[goos]
		case again:
			continue
		}
		seen[same] = true
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			assert.NoError(t, checker.Check(goos, goarch, these...))
		})
	}
	if long {
		assert.Greater(t, len(seen), 15)
	}
}

// TestRemainingCodeCompiles type-checks code that no other test compiles: every package for 32 bits, and an example in
// a separate module. make test-all checks all such modules for 32 bits.
func TestRemainingCodeCompiles(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("compiles examples; GOVERBS_LONG=1, which make test sets, runs it")
	}
	t.Parallel()
	modules := map[string][]string{"../..": {"386"}, "../../examples/grpc": {"amd64"}}
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		modules["../../examples/grpc"] = []string{"amd64", "386"}
		modules["../../examples/valkey"] = []string{"amd64", "386"}
		modules["../../s3rdma/sdktest"] = []string{"amd64", "386"}
	}
	for dir, arches := range modules {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			run := func(arg ...string) (out, complaints string, err error) {
				var stderr strings.Builder
				cmd := exec.Command("go", arg...)
				cmd.Dir, cmd.Stderr = dir, &stderr
				text, err := cmd.Output()
				return string(text), stderr.String(), err
			}
			if _, reason, err := run("mod", "download"); err != nil {
				t.Skipf("modules of %s are missing (make deps downloads them): %s", dir, reason)
			}
			checker, err := targets.New(dir)
			require.NoError(t, err)
			out, cause, err := run("list", "-f", "{{.Dir}}", "./...")
			require.NoError(t, err, cause)
			root, err := filepath.Abs(dir)
			require.NoError(t, err)
			var packages []string
			for dir := range strings.Lines(out) {
				name, err := filepath.Rel(root, strings.TrimSpace(dir))
				require.NoError(t, err)
				packages = append(packages, name)
			}
			require.NotEmpty(t, packages)
			for _, arch := range arches {
				assert.NoError(t, checker.Check("linux", arch, packages...), "%s: %s", dir, arch)
			}
		})
	}
}

// TestStaticProgram checks that a program that imports the type packages is static without cgo.
func TestStaticProgram(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module user\n\ngo 1.26\n\nrequire "+module+
		" v0.0.0\n\nreplace "+module+" => "+root+"\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(`package main

import (
	"fmt"

	"`+module+`/generated/ibv"
)

func main() {
	wr := ibv.SendWR{Opcode: ibv.WR_RDMA_WRITE_WITH_IMM, SendFlags: ibv.SEND_SIGNALED | ibv.SEND_INLINE}
	*wr.ImmData() = ibv.ToBE32(7)
	wr.WR.RDMA().RKey = 0x1234
	fmt.Println(wr.Opcode, wr.SendFlags, wr.ImmData().Host(), ibv.PostSendValidity(ibv.QPT_UC, ibv.WR_RDMA_READ).Answer)
}
`), 0o644))
	for _, arch := range []string{"amd64", "arm64"} {
		build := exec.Command("go", "build", "-o", arch, ".")
		build.Dir = dir
		build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assertStatic(t, filepath.Join(dir, arch))
	}
	out, err := exec.Command(filepath.Join(dir, "amd64")).CombinedOutput()
	if err != nil && strings.Contains(err.Error(), "exec format") {
		out, err = exec.Command(filepath.Join(dir, "arm64")).CombinedOutput()
	}
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "IBV_WR_RDMA_WRITE_WITH_IMM IBV_SEND_SIGNALED|IBV_SEND_INLINE 7 no\n", string(out))
}

// assertStatic checks that an ELF program needs neither a dynamic linker nor libraries.
func assertStatic(t *testing.T, file string) {
	t.Helper()
	f, err := elf.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		assert.NotEqual(t, elf.PT_INTERP, p.Type, "%s has an interpreter", file)
		assert.NotEqual(t, elf.PT_DYNAMIC, p.Type, "%s has a dynamic section", file)
	}
	libraries, err := f.ImportedLibraries()
	assert.NoError(t, err)
	assert.Empty(t, libraries, file)
}

// TestStaticCommand checks that cmd/goverbs, which imports most packages, is static with the tag goverbs_static, and
// that its devices and errors are those of such a build.
func TestStaticCommand(t *testing.T) {
	t.Parallel()
	architectures := []string{"amd64"}
	if os.Getenv("GOVERBS_EVERYTHING") != "" { // TestEveryTarget type-checks it
		architectures = append(architectures, "arm64")
	}
	dir := t.TempDir()
	for _, arch := range architectures {
		file := filepath.Join(dir, arch)
		build := exec.Command("go", "build", "-tags", "goverbs_static", "-o", file, "./cmd/goverbs")
		build.Dir = "../.."
		build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assertStatic(t, file)
		if arch != runtime.GOARCH || runtime.GOOS != "linux" {
			continue
		}
		run := exec.Command(file, "--json", "devices")
		run.Env = append(os.Environ(), "GOVERBS_DEVICE=")
		out, err = run.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), `"library": "native"`)
		assert.Contains(t, string(out), `"name": "soft0"`)
	}
}
