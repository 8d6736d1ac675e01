// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// TestNativeDeviceMemory compares allocation, copies and registration of device memory by libmlx5 and by package native.
func TestNativeDeviceMemory(t *testing.T) {
	if os.Getenv(envInside) == "" {
		compareRecords(t, nil)
		return
	}
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	u := newUser(t, envBackend(t))
	host, err := offheap.Map(1<<13, offheap.Options{})
	keep(t, host, err)
	b := host.Bytes()
	for i := range b {
		b[i] = byte(i * 7)
	}
	at := host.Address()
	for _, try := range []ibv.AllocDMAttr{{Length: 64}, {Length: 4096, LogAlignReq: 6}, {Length: 5000}, {Length: 1 << 17},
		{Length: 1<<17 + 1}, {}, {Length: 64, LogAlignReq: 40}, {Length: 64, CompMask: 1}} {
		dm, err := verbs.AllocDM(u.context, &try)
		fmt.Fprintln(out, try, errnoOf(t, err))
		if err != nil {
			continue
		}
		fmt.Fprintln(out, dm.CompMask, dm.Context == ibv.PtrTo(u.context), dm.Handle)
		for _, c := range [][2]uint64{{0, 64}, {4, 8}, {60, 4}, {60, 8}, {64, 0}, {2, 4}, {4, 3}, {1 << 40, 4}, {4000, 96}} {
			clear(b[4096:])
			fmt.Fprint(out, c, errnoOf(t, verbs.MemcpyToDM(dm, c[0], at+uintptr(c[0]%4096), c[1])), " ")
			fmt.Fprint(out, errnoOf(t, verbs.MemcpyFromDM(at+4096, dm, c[0], c[1])), " ")
			fmt.Fprintln(out, b[4096:][:96])
		}
		for _, r := range []struct {
			offset, length uint64
			access         ibv.AccessFlags
		}{
			{0, 64, ibv.ACCESS_ZERO_BASED}, {32, 32, ibv.ACCESS_ZERO_BASED | ibv.ACCESS_LOCAL_WRITE},
			{0, try.Length, ibv.ACCESS_ZERO_BASED | ibv.ACCESS_REMOTE_READ},
			{0, try.Length + 1, ibv.ACCESS_ZERO_BASED}, {0, 64, 0}, {0, 64, ibv.ACCESS_ZERO_BASED | ibv.ACCESS_ON_DEMAND},
		} {
			mr, err := verbs.RegDMMR(u.pd, dm, r.offset, r.length, r.access)
			fmt.Fprintln(out, r, errnoOf(t, err))
			if err != nil {
				continue
			}
			fmt.Fprintln(out, mr.Addr, mr.Length, mr.Handle, mr.LKey, mr.RKey, mr.PD == ibv.PtrTo(u.pd))
			fmt.Fprintln(out, errnoOf(t, verbs.FreeDM(dm)), "while it has a region")
			require.NoError(t, verbs.DeregMR(mr))
		}
		require.NoError(t, verbs.FreeDM(dm))
	}
}

// TestDeviceMemory transfers data between memory of the device and of the program.
func TestDeviceMemory(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, path := range []string{pathC, pathNative} {
			again(t, emulated(t), path)
		}
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
	dm, err := device.AllocDM(&ibv.AllocDMAttr{Length: 256})
	keep(t, dm, err)
	mr, err := qps[1].PD().RegDMMR(dm, 64, 128, ibv.ACCESS_ZERO_BASED|ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|
		ibv.ACCESS_REMOTE_READ)
	keep(t, mr, err)
	copy(mrs[0].Bytes(), "on the device")
	send(t, qps[0], func(b *rdma.SendBatch) { b.Write(1, 4, mr.RKey()).Add(mrs[0].SGE(0, 16)).Signaled() })
	wc := next(t, qps[0].SendCQ())
	require.NoError(t, rdma.CompletionErr(&wc))
	text := make([]byte, 16)
	_, err = dm.ReadAt(text, 68)
	require.NoError(t, err)
	assert.Equal(t, "on the device", string(text[:13]))
	_, err = dm.WriteAt([]byte("back"), 72)
	require.NoError(t, err)
	send(t, qps[0], func(b *rdma.SendBatch) { b.Read(2, 4, mr.RKey()).Add(mrs[0].SGE(0, 16)).Signaled() })
	wc = next(t, qps[0].SendCQ())
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "on tbackevice", string(mrs[0].Bytes()[:13]))
	send(t, qps[0], func(b *rdma.SendBatch) { b.Write(3, 120, mr.RKey()).Add(mrs[0].SGE(0, 16)).Signaled() })
	wc = next(t, qps[0].SendCQ())
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, wc.Status, "beyond the region")
}
