// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// TestGoWitness compiles the packages for this machine, and in make test-all for every target. TestEveryTarget of
// conformance/house type-checks the same assertions for every target.
func TestGoWitness(t *testing.T) {
	packages := []string{}
	for _, p := range rules.Packages {
		packages = append(packages, "./generated/"+p.Name)
	}
	for _, target := range headers.Targets() {
		t.Run(target, func(t *testing.T) {
			if target != runtime.GOARCH && os.Getenv("GOVERBS_EVERYTHING") == "" {
				t.Skip("make test-all does this; TestEveryTarget of conformance/house type-checks it")
			}
			assert.NoError(t, GoWitness(context.Background(), "../..", target, packages...))
		})
	}
}

// ownLayout returns the file with the assertions that do not hold on every target.
func ownLayout(t *testing.T) string {
	t.Helper()
	own := "layout_linux_" + runtime.GOARCH + ".go"
	if _, err := os.Stat("../../generated/ibv/" + own); err != nil {
		return "layout_linux_default.go" // it shares one with the targets that agree
	}
	return own
}

// TestGoWitnessFindsMutations: the compiler names each changed member, offset and size.
func TestGoWitnessFindsMutations(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	tests := []struct{ name, pkg, file, old, new, want string }{
		{"member", "ibv", "struct.go", `(?m)^\tGIDIndex +uint32`, "\tGIDIndex uint64", "layout_linux.go"},
		{"order", "ibv", "struct.go", `(?m)^(\tRemoteAddr +[\w.]+)( .*)?\n(\tRKey +[\w.]+)( .*)?$`, "$3\n$1",
			"layout_linux.go"},
		{"assertion", "ibv", "layout_linux.go", `Offsetof\(GIDEntry\{\}\.GIDIndex\)-16`,
			"Offsetof(GIDEntry{}.GIDIndex)-20", "layout_linux.go"},
		{"size that some targets have", "ibv", ownLayout(t), `(Sizeof\(SRQ\{\}\)-\d+)`, "${1}0", ownLayout(t)},
		{"packed", "mlx5dv", "struct.go", `(?m)^(\tImm +)\S+`, "${1}uint64", "layout_linux.go"},
		{"connection manager", "rdmacm", "struct.go", `(?m)^(\tPortNum +)\S+`, "${1}uint16", "layout_linux.go"},
		{"mlx4dv", "mlx4dv", "struct.go", `(?m)^(\tMSSHdrSize +)\S+`, "${1}ibv.BE64", "layout_linux.go"},
		{"efadv", "efadv", "struct.go", `(?m)^(\tDriverQPType +)\S+`, "${1}uint64", "layout_linux.go"},
		{"hnsdv", "hnsdv", "struct.go", `(?m)^(\tCreateFlags +)\S+`, "${1}uint64", "layout_linux.go"},
		{"manadv", "manadv", "struct.go", `(?m)^(\tTXVpOffset +)\S+`, "${1}uint64", "layout_linux.go"},
		{"uapi", "uapi", "struct.go", `(?m)^(\tLog2ElemSize +)\S+`, "${1}uint64", "layout_linux.go"},
	}
	dir := t.TempDir() // the module of the mutants
	for _, pkg := range []string{"ibv", "mlx5dv", "rdmacm", "mlx4dv", "efadv", "hnsdv", "manadv", "uapi"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, "generated", pkg), os.DirFS("../../generated/"+pkg)))
	}
	require.NoError(t,
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+rules.Module+"\n\ngo 1.26\n"), 0o644))
	require.NoError(t, GoWitness(context.Background(), dir, runtime.GOARCH, "./generated/..."), "before a mutation")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pkg := "./generated/" + test.pkg
			name := filepath.Join(dir, pkg, test.file)
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			mutant := regexp.MustCompile(test.old).ReplaceAll(text, []byte(test.new))
			require.False(t, bytes.Equal(text, mutant), "the mutation changes nothing: %s has no %s", test.file,
				test.old)
			require.NoError(t, os.WriteFile(name, mutant, 0o644))
			assert.ErrorContains(t, GoWitness(context.Background(), dir, runtime.GOARCH, pkg), test.want)
			require.NoError(t, os.WriteFile(name, text, 0o644))
		})
	}
	assert.NoError(t, GoWitness(context.Background(), dir, runtime.GOARCH, "./generated/..."), "without mutations")
}

func TestGoWitnessFails(t *testing.T) {
	assert.ErrorContains(t, GoWitness(context.Background(), t.TempDir(), "amd64", "./no/such/package"),
		"no/such/package")
	assert.ErrorContains(t, GoWitness(context.Background(), "../..", "pdp11", "./generated/ibv"), "pdp11")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, GoWitness(ctx, "../..", "amd64", "./generated/ibv"), context.Canceled)
	t.Setenv("PATH", t.TempDir())
	assert.ErrorContains(t, GoWitness(context.Background(), "../..", "amd64", "./generated/ibv"), "install Go")
}
