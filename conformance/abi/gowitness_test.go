package abi

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

	"github.com/goverbs/goverbs/headers"
)

func TestGoWitness(t *testing.T) {
	for _, target := range headers.Targets() {
		t.Run(target, func(t *testing.T) {
			assert.NoError(t, GoWitness(context.Background(), "../..", "./generated/ibv", target))
		})
	}
}

// One changed member, one changed offset, one changed size: the compiler must name each.
func TestGoWitnessFindsMutations(t *testing.T) {
	tests := []struct{ name, file, old, new, want string }{
		{"member", "struct.go", `(?m)^\tGIDIndex +uint32`, "\tGIDIndex uint64", "layout_linux.go"},
		{"order", "struct.go", `(?m)^(\tRemoteAddr +[\w.]+)( .*)?\n(\tRKey +[\w.]+)( .*)?$`, "$3\n$1", "layout_linux.go"},
		{"assertion", "layout_linux.go", `Offsetof\(GIDEntry\{\}\.GIDIndex\)-16`, "Offsetof(GIDEntry{}.GIDIndex)-20", "layout_linux.go"},
		{"size that this target alone has", "layout_linux_" + runtime.GOARCH + ".go", `(Sizeof\(SRQ\{\}\)-\d+)`, "${1}0", "layout_linux_" + runtime.GOARCH + ".go"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(filepath.Join(dir, "ibv"), os.DirFS("../../generated/ibv")))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module mutant\n\ngo 1.26\n"), 0o644))
			require.NoError(t, GoWitness(context.Background(), dir, "./ibv", runtime.GOARCH), "before the mutation")
			name := filepath.Join(dir, "ibv", test.file)
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			mutant := regexp.MustCompile(test.old).ReplaceAll(text, []byte(test.new))
			require.False(t, bytes.Equal(text, mutant), "the mutation changes nothing: %s has no %s", test.file, test.old)
			require.NoError(t, os.WriteFile(name, mutant, 0o644))
			assert.ErrorContains(t, GoWitness(context.Background(), dir, "./ibv", runtime.GOARCH), test.want)
		})
	}
}

func TestGoWitnessIsHeard(t *testing.T) {
	assert.ErrorContains(t, GoWitness(context.Background(), t.TempDir(), "./no/such/package", "amd64"), "no/such/package")
	assert.ErrorContains(t, GoWitness(context.Background(), "../..", "./generated/ibv", "pdp11"), "pdp11")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, GoWitness(ctx, "../..", "./generated/ibv", "amd64"), context.Canceled)
	t.Setenv("PATH", t.TempDir())
	assert.ErrorContains(t, GoWitness(context.Background(), "../..", "./generated/ibv", "amd64"), "install Go")
}
