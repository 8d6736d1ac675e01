// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// TestStorm runs TestStorm of package rdma, in which goroutines concurrently post, poll, wait, create, modify and
// destroy, over libmlx5, libmlx4 and the data path in Go, without and with the race detector.
func TestStorm(t *testing.T) {
	slow(t)
	rounds := "400" // a tenth of which are storms
	if n := os.Getenv("GOVERBS_ROUNDS"); n != "" {
		rounds = n
	}
	e := emulated(t)
	for name, flags := range map[string][]string{"": {"CGO_ENABLED=0"}, "race": {"CGO_ENABLED=1", "GOFLAGS=-race"}} {
		program := filepath.Join(dir, "storm"+name+".test")
		cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program, "../../rdma")
		cmd.Env = append(os.Environ(), flags...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, path := range []string{pathC, pathGo, pathMLX4} {
			t.Run(path+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				on := e
				if path == pathMLX4 {
					on = e.As(MLX4)
				}
				cmd := on.Command(ctx, program, "-test.v", "-test.run=^TestStorm$", "-test.timeout=9m")
				cmd.Env = append(cmd.Env, "GOVERBS_STORM="+on.adapter.Device, "GOVERBS_ROUNDS="+rounds)
				if path == pathGo {
					cmd.Env = append(cmd.Env, wire.EnvPath+"=mlx5")
				}
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				assert.Contains(t, string(out), "--- PASS: TestStorm (")
			})
		}
	}
}
