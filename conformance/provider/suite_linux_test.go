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

// notHere are tests of conformance/vm/objects that cannot pass here, and why.
var notHere = []struct{ test, why string }{
	{"TestGIDsOfVLANs", "there is no network device below the adapter"},
	{"TestGIDsOfNamespaces", "there is no network device below the adapter"},
	{"TestMulticast", "there is no network device below the adapter"},
	{"TestNumbersAsTheKernelWritesThem", "it reads /sys, whatever SYSFS_PATH says"},
	{"TestResizedSRQ", "mlx5 does not resize shared receive queues"},
	{"TestWhatTheDeviceLacks", "it lists what Soft-RoCE lacks"},
	{"TestManyQueuePairs", "it counts resources by netlink, which is not emulated"},
	{"TestCacheOfChangedMemory", "a registration pins nothing here: the device finds what is mapped now"},
	{"TestCacheOfGoMemory", "a registration pins nothing here: the device finds what is mapped now"},
	{"TestRegistrationSpeed", "what it measures is this emulation"},
}

// TestIdentity: what the data path in Go writes to queues, doorbell records and doorbells is what libmlx5 writes, and
// it makes the same of completions: requests, receives and completions at random.
func TestIdentity(t *testing.T) {
	lists := 24_000
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		lists = manyLists
	}
	identity(t, emulated(t), lists)
}

// manyLists are the lists that are posted where there is time.
const manyLists = 10_000_000

func identity(t *testing.T, e *Emulated, lists int) {
	t.Helper()
	program := filepath.Join(dir, "direct.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program,
		"../../rdma/mlx5/internal/direct").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, size := range []string{"64", "128"} { // bytes of a completion
		seed := rand.Uint64()
		cmd := e.Command(t.Context(), program, "-test.v", "-test.run=^TestIdentity")
		cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_STILL=1", "GOVERBS_IDENTITY_LISTS="+strconv.Itoa(lists/2),
			"GOVERBS_IDENTITY_SEED="+strconv.FormatUint(seed, 10), "MLX5_CQE_SIZE="+size)
		if e.libraries.Release < "64" {
			cmd.Env = append(cmd.Env, "GOVERBS_IDENTITY_OLD=1")
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s bytes, seed %d: %s", size, seed, out)
		t.Logf("%s", out)
	}
}

// TestObjectSuite: the tests of the objects, which were written for Soft-RoCE in guests, over libmlx5 and over the data
// path in Go.
func TestObjectSuite(t *testing.T) {
	for _, path := range []string{pathC, pathGo} {
		t.Run(path, func(t *testing.T) { objectSuite(t, emulated(t), path) })
	}
}

func objectSuite(t *testing.T, e *Emulated, path string) {
	t.Helper()
	program := filepath.Join(dir, "objects.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program, "../vm/objects").
		CombinedOutput()
	require.NoError(t, err, "%s", out)
	var skip []string
	for _, n := range notHere {
		skip = append(skip, "^"+n.test+"$")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := e.Command(ctx, program, "-test.v", "-test.timeout=4m", "-test.skip="+strings.Join(skip, "|"))
	cmd.Env = append(cmd.Env, wire.EnvGuest+"=6.1", wire.EnvDevice+"="+Device, wire.EnvAddress+"="+Address,
		wire.EnvLibrary+"="+e.libraries.Release)
	if path == pathGo {
		cmd.Env = append(cmd.Env, wire.EnvPath+"=mlx5")
	}
	text, _ := cmd.CombinedOutput() // its status is that of counting resources by netlink, which is not emulated
	assert.Contains(t, string(text), "\nPASS\nrig: counting RDMA resources: ", "%s", text)
	assert.NotContains(t, string(text), "--- FAIL")
	assert.Greater(t, strings.Count(string(text), "\n--- PASS"), 10)
}
