// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// TestSlotsOfOlderLibraries: structures of an older library are too short for some slots, so memory at their offsets
// must not be read. testdata/device.c imitates release 44.0 in a child process.
func TestSlotsOfOlderLibraries(t *testing.T) {
	needC(t)
	const inside = "GOVERBS_TEST_OLD_LIBRARY"
	if os.Getenv(inside) != "" {
		slotsOfRelease44(t)
		return
	}
	dir := os.Getenv("GOVERBS_TEST_LIBRARIES")
	if dir == "" {
		dir = t.TempDir()
		err := compileDevice(dir)
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("no C compiler: ", err)
		}
		require.NoError(t, err)
	}
	words := append(strings.Fields(os.Getenv("GOVERBS_TEST_EMULATOR")), os.Args[0], "-test.run=^"+t.Name()+"$",
		"-test.v")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1",
		"GOVERBS_LIBIBVERBS="+filepath.Join(dir, "libdevice.so"), "GOVERBS_TEST_LIBRARIES="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: "+t.Name())
}

func slotsOfRelease44(t *testing.T) {
	d := native(t)
	function := d.context.Ops.ReqNotifyCQ // a C function that does nothing
	x := &ibv.QPEx{QPBase: d.qp, WRStart: function, WRComplete: function, WRSetSGE: function, WRAtomicWrite: function,
		WRFlush: 8}
	q, err := NewSendQueue(&x.QPBase, nativeOptions("blocking"))
	require.NoError(t, err)

	p := NewWRProgram(x)
	p.AtomicWrite(1, 8, 2, [8]byte{}).Signaled()
	require.NoError(t, p.Err())
	require.NoError(t, q.PostProgram(p), "release 44.0 has the slot")

	p.Reset()
	p.Flush(1, 1, 2, 3, 1, 1).Signaled()
	err = q.PostProgram(p)
	assert.ErrorIs(t, err, runtime.ErrNotSupported)
	assert.ErrorContains(t, err, "ibv_wr_flush: objects of ")
	assert.ErrorContains(t, err, "libdevice.so do not have the slot (rdma-core has it since 56.1)")

	x.WRAtomicWrite = 0
	p.Reset()
	p.AtomicWrite(1, 8, 2, [8]byte{}).Signaled()
	assert.EqualError(t, p.Err(), "ibv_wr_atomic_write: the queue pair lacks the function: it was created without "+
		"it (rdma-core has it since 44.0)")
}
