// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// duplicate returns a duplicate of a context's descriptor.
func (r *testbed) duplicate(c *ibv.Context) int {
	file, err := unix.FcntlInt(uintptr(c.CmdFD), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(r.t, err)
	return file
}

// imported returns another context of an open device.
func (r *testbed) imported(device int) *ibv.Context {
	c, err := verbs.From{Backend: r.fabric}.ImportDevice(r.duplicate(r.context[device]))
	require.NoError(r.t, err)
	return c
}

// isOpen reports whether a descriptor is open.
func isOpen(file int32) bool {
	_, err := unix.FcntlInt(uintptr(file), unix.F_GETFD, 0)
	return err == nil
}

// TestImportedObjectsCarryTraffic: a queue pair in an imported domain uses regions of the original domain, and peers
// use the key of an imported region.
func TestImportedObjectsCarryTraffic(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	before := r.fabric.Resources()
	bufA, bufB := r.buffer(0, 64, allAccess), r.buffer(1, 64, allAccess)
	c := r.imported(1)
	pd, err := verbs.ImportPD(c, r.pd[1].Handle)
	require.NoError(t, err)
	mr, err := verbs.ImportMR(pd, bufB.mr.Handle)
	require.NoError(t, err)
	assert.Equal(t, [3]ibv.Ptr[ibv.Context]{ibv.PtrTo(c), ibv.PtrTo(c), ibv.PtrTo(c)},
		[3]ibv.Ptr[ibv.Context]{pd.Context, mr.Context, mr.PD.Deref().Context})
	assert.Equal(t, [4]uint64{0, 64, uint64(bufB.mr.LKey), uint64(bufB.mr.RKey)},
		[4]uint64{uint64(mr.Addr), mr.Length, uint64(mr.LKey), uint64(mr.RKey)})
	assert.Equal(t, [2]uint32{r.pd[1].Handle, bufB.mr.Handle}, [2]uint32{pd.Handle, mr.Handle})

	cq, err := verbs.CreateCQ(c, 4, 0, nil, 0)
	require.NoError(t, err)
	to, err := verbs.CreateQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		Cap: testCaps})
	require.NoError(t, err)
	assert.Equal(t, ibv.PtrTo(pd), to.PD)
	own := r.cq(0, 4)
	from := r.qp(0, ibv.QPT_RC, testCaps, own, own)
	r.connect(from, 1, to.QPNum)
	r.connect(to, 0, from.QPNum)
	copy(bufA.bytes, "there")
	wr := r.send(1, ibv.WR_RDMA_WRITE, bufA.sge(0, 5))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: bufB.at(3), RKey: mr.RKey}
	require.NoError(t, r.post(from, wr))
	require.Equal(t, ibv.WC_SUCCESS, r.poll(own).Status)
	assert.Equal(t, "there", string(bufB.bytes[3:8]))
	wr = r.send(1, ibv.WR_RDMA_WRITE, ibv.SGE{Addr: bufB.at(4), Length: 4, LKey: mr.LKey})
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: bufA.at(0), RKey: bufA.mr.RKey}
	require.NoError(t, r.post(to, wr))
	require.Equal(t, ibv.WC_SUCCESS, r.poll(cq).Status)
	assert.Equal(t, "heree", string(bufA.bytes[:5]))

	assert.ErrorIs(t, verbs.DeallocPD(pd), syscall.EBUSY)
	assert.ErrorIs(t, verbs.DeallocPD(r.pd[1]), syscall.EBUSY,
		"the region and the queue pair use the domain, whatever the handle")
	require.NoError(t, verbs.UnimportMR(mr))
	require.NoError(t, verbs.UnimportPD(pd))
	require.NoError(t, r.post(to, wr), "objects of the domain keep working")
	require.Equal(t, ibv.WC_SUCCESS, r.poll(cq).Status)
	require.NoError(t, verbs.DestroyQP(to))
	require.NoError(t, verbs.DestroyCQ(cq))
	require.NoError(t, verbs.CloseDevice(c))
	after := r.fabric.Resources()
	for _, counts := range []map[string]int{before, after} {
		for _, kind := range []string{"mr", "cq", "qp"} {
			delete(counts, kind)
		}
	}
	assert.Equal(t, before, after)
}

// TestDestroyByAnyHandle: destroying any handle destroys the object. Other handles can only be unimported.
func TestDestroyByAnyHandle(t *testing.T) {
	for _, byImport := range []bool{false, true} {
		r := newTestbed(t, Options{})
		before := r.fabric.Resources()
		c := r.imported(0)
		pd, err := verbs.AllocPD(r.context[0])
		require.NoError(t, err)
		dm, err := verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: 64})
		require.NoError(t, err)
		memory := offHeap[byte](r, 64)
		mr, err := verbs.RegMR(pd, pointerTo(&memory[0]), 64, allAccess)
		require.NoError(t, err)
		pd2, err := verbs.ImportPD(c, pd.Handle)
		require.NoError(t, err)
		mr2, err := verbs.ImportMR(pd2, mr.Handle)
		require.NoError(t, err)
		dm2, err := verbs.ImportDM(c, dm.Handle)
		require.NoError(t, err)
		word := offHeap[byte](r, 8)
		copy(word, "shared")
		require.NoError(t, verbs.MemcpyToDM(dm2, 8, pointerTo(&word[0]), 8))
		clear(word)
		require.NoError(t, verbs.MemcpyFromDM(pointerTo(&word[0]), dm, 8, 8))
		assert.Equal(t, "shared\x00\x00", string(word))
		const zeroBased = allAccess&^ibv.ACCESS_FLUSH_GLOBAL | ibv.ACCESS_ZERO_BASED
		onDM, err := verbs.RegDMMR(pd2, dm2, 0, 64, zeroBased)
		require.NoError(t, err)
		assert.ErrorIs(t, verbs.FreeDM(dm), syscall.EBUSY)
		assert.ErrorIs(t, verbs.FreeDM(dm2), syscall.EBUSY)
		require.NoError(t, verbs.DeregMR(onDM))

		key := mr.RKey
		mrs := [2]*ibv.MR{mr, mr2}
		pds, dms := [2]*ibv.PD{pd, pd2}, [2]*ibv.DM{dm, dm2}
		if byImport {
			mrs, pds, dms = [2]*ibv.MR{mr2, mr}, [2]*ibv.PD{pd2, pd}, [2]*ibv.DM{dm2, dm}
		}
		_, err = verbs.ReregMR(mr2, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, 0)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorIs(t, verbs.DeallocPD(pds[0]), syscall.EBUSY)
		require.NoError(t, verbs.DeregMR(mrs[0]))
		r.fabric.Mu.Lock()
		assert.Nil(t, r.fabric.devices[0].Keys.Get(key))
		r.fabric.Mu.Unlock()
		throughImport, err := verbs.RegMR(pd2, pointerTo(&memory[0]), 64, allAccess)
		require.NoError(t, err)
		assert.ErrorIs(t, verbs.DeallocPD(pd), syscall.EBUSY, "a region was registered through the import")
		assert.ErrorIs(t, verbs.DeallocPD(pd2), syscall.EBUSY)
		require.NoError(t, verbs.DeregMR(throughImport))
		require.NoError(t, verbs.FreeDM(dms[0]))
		require.NoError(t, verbs.DeallocPD(pds[0]))

		assert.ErrorIs(t, verbs.DeregMR(mrs[1]), syscall.EINVAL, "the object is destroyed")
		assert.ErrorIs(t, verbs.FreeDM(dms[1]), syscall.EINVAL)
		assert.ErrorIs(t, verbs.DeallocPD(pds[1]), syscall.EINVAL)
		assert.ErrorIs(t, verbs.MemcpyToDM(dms[1], 0, pointerTo(&word[0]), 8), syscall.EINVAL)
		_, err = verbs.RegMR(pds[1], pointerTo(&memory[0]), 64, allAccess)
		assert.ErrorIs(t, err, syscall.EINVAL)
		_, err = verbs.ImportPD(c, pds[1].Handle)
		assert.ErrorIs(t, err, syscall.ENOENT)
		_, err = verbs.ImportMR(r.pd[0], mrs[1].Handle)
		assert.ErrorIs(t, err, syscall.ENOENT)
		_, err = verbs.ImportDM(c, dms[1].Handle)
		assert.ErrorIs(t, err, syscall.ENOENT)
		assert.Equal(t, before["pd"]+1, r.fabric.Resources()["pd"], "the imported handle still counts")
		require.NoError(t, verbs.UnimportMR(mrs[1]))
		require.NoError(t, verbs.UnimportDM(dms[1]))
		require.NoError(t, verbs.UnimportPD(pds[1]))
		require.NoError(t, verbs.CloseDevice(c))
		assert.Equal(t, before, r.fabric.Resources())
	}
}

// TestUnimportOriginal: the original handle of an object can be unimported before another handle destroys the object.
func TestUnimportOriginal(t *testing.T) {
	r := newTestbed(t, Options{})
	before := r.fabric.Resources()
	c := r.imported(0)
	pd, err := verbs.AllocPD(r.context[0])
	require.NoError(t, err)
	dm, err := verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: 64})
	require.NoError(t, err)
	memory := offHeap[byte](r, 64)
	mr, err := verbs.RegMR(pd, pointerTo(&memory[0]), 64, allAccess)
	require.NoError(t, err)
	numbers := [3]uint32{pd.Handle, mr.Handle, dm.Handle}
	require.NoError(t, verbs.UnimportMR(mr))
	require.NoError(t, verbs.UnimportDM(dm))
	require.NoError(t, verbs.UnimportPD(pd))
	pd2, err := verbs.ImportPD(c, numbers[0])
	require.NoError(t, err)
	mr2, err := verbs.ImportMR(pd2, numbers[1])
	require.NoError(t, err)
	dm2, err := verbs.ImportDM(c, numbers[2])
	require.NoError(t, err)
	require.NoError(t, verbs.DeregMR(mr2))
	require.NoError(t, verbs.FreeDM(dm2))
	require.NoError(t, verbs.DeallocPD(pd2))
	require.NoError(t, verbs.CloseDevice(c))
	assert.Equal(t, before, r.fabric.Resources())
}

// TestImportedWindow: a window is bound to an imported region, which then cannot be deregistered.
func TestImportedWindow(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	window, err := verbs.AllocMW(s.pd[1], ibv.MW_TYPE_2)
	require.NoError(t, err)
	bound, err := verbs.RegMR(s.pd[1], pointerTo(&s.bufB.bytes[0]), 64, allAccess|ibv.ACCESS_MW_BIND)
	require.NoError(t, err)
	imported, err := verbs.ImportMR(s.pd[1], bound.Handle)
	require.NoError(t, err)
	wr := s.send(1, ibv.WR_BIND_MW)
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(window), RKey: window.RKey&^0xff | (window.RKey+1)&0xff,
		BindInfo: ibv.MWBindInfo{MR: ibv.PtrTo(imported), Addr: s.bufB.at(0), Length: 8,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}
	require.NoError(t, s.post(s.p.b, wr))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bSend).Status)
	assert.ErrorIs(t, verbs.DeregMR(imported), syscall.EBUSY)
	assert.ErrorIs(t, verbs.DeregMR(bound), syscall.EBUSY)
	require.NoError(t, verbs.DeallocMW(window))
	require.NoError(t, verbs.DeregMR(imported))
	require.NoError(t, verbs.UnimportMR(bound))
}

// TestInvalidImports: descriptors that do not belong to an open device of the fabric are rejected, and stay open.
func TestInvalidImports(t *testing.T) {
	r, other := newTestbed(t, Options{}), newTestbed(t, Options{})
	expectError := func(file int, want error, why string) {
		t.Helper()
		_, err := verbs.From{Backend: r.fabric}.ImportDevice(file)
		assert.ErrorIs(t, err, want, why)
	}
	expectError(-1, syscall.EINVAL, "negative descriptor")
	expectError(1<<20, syscall.EINVAL, "closed descriptor")
	expectError(int(r.context[0].CmdFD), syscall.EINVAL, "not a duplicate: closing both contexts would close it twice")
	expectError(int(r.context[0].AsyncFD), syscall.EINVAL, "asynchronous event descriptor")
	memory, _ := memoryFile(t, 4096)
	defer unix.Close(memory)
	expectError(memory, syscall.EINVAL, "unrelated memfd")
	of := other.duplicate(other.context[0])
	defer unix.Close(of)
	expectError(of, syscall.ENODEV, "another fabric")
	assert.True(t, isOpen(int32(of)))

	foreign, err := unix.MemfdCreate("foreign", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(foreign)
	content := make([]byte, 256)
	n, err := unix.Pread(of, content, 0)
	require.NoError(t, err)
	content[n-2] ^= 1 // the last digit of the process ID
	_, err = unix.Write(foreign, content[:n])
	require.NoError(t, err)
	expectError(foreign, syscall.EINVAL, "memfd without a write seal")
	_, err = unix.FcntlInt(uintptr(foreign), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.NoError(t, err)
	expectError(foreign, syscall.EOPNOTSUPP, "another process")

	pd, err := verbs.AllocPD(r.context[1])
	require.NoError(t, err)
	_, err = verbs.ImportPD(r.context[0], pd.Handle)
	assert.ErrorIs(t, err, syscall.ENOENT, "another device")
	opened, err := verbs.OpenDevice(r.context[1].Device.Deref())
	require.NoError(t, err)
	_, err = verbs.ImportPD(opened, pd.Handle)
	assert.ErrorIs(t, err, syscall.ENOENT, "opened again, not imported")
	again, err := verbs.ImportPD(r.context[1], pd.Handle)
	require.NoError(t, err, "import into the same context")
	require.NoError(t, verbs.DeallocPD(pd))
	require.NoError(t, verbs.UnimportPD(again))

	dup := r.duplicate(opened)
	imported, err := verbs.From{Backend: r.fabric}.ImportDevice(dup)
	require.NoError(t, err)
	closedDup := r.duplicate(opened)
	defer unix.Close(closedDup)
	file := opened.CmdFD
	require.NoError(t, verbs.CloseDevice(opened))
	assert.False(t, isOpen(file))
	assert.True(t, isOpen(int32(dup)))
	require.NoError(t, verbs.CloseDevice(imported))
	assert.False(t, isOpen(int32(dup)))
	expectError(closedDup, syscall.ENODEV, "the device is closed")
}
