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
func (r *rig) duplicate(c *ibv.Context) int {
	file, err := unix.FcntlInt(uintptr(c.CmdFD), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(r.t, err)
	return file
}

// imported is another context of a device that is open.
func (r *rig) imported(device int) *ibv.Context {
	c, err := verbs.From{Backend: r.fabric}.ImportDevice(r.duplicate(r.context[device]))
	require.NoError(r.t, err)
	return c
}

// isOpen reports whether there is a file of a descriptor's number.
func isOpen(file int32) bool {
	_, err := unix.FcntlInt(uintptr(file), unix.F_GETFD, 0)
	return err == nil
}

// TestImportedObjectsCarryTraffic: a queue pair in an imported domain uses regions of the one that was imported, and
// peers use an imported region's key.
func TestImportedObjectsCarryTraffic(t *testing.T) {
	r := newRig(t, Options{Virtual: true})
	before := r.fabric.Resources()
	here, there := r.buffer(0, 64, everything), r.buffer(1, 64, everything)
	c := r.imported(1)
	pd, err := verbs.ImportPD(c, r.pd[1].Handle)
	require.NoError(t, err)
	mr, err := verbs.ImportMR(pd, there.mr.Handle)
	require.NoError(t, err)
	assert.Equal(t, [3]ibv.Ptr[ibv.Context]{ibv.PtrTo(c), ibv.PtrTo(c), ibv.PtrTo(c)},
		[3]ibv.Ptr[ibv.Context]{pd.Context, mr.Context, mr.PD.Deref().Context})
	assert.Equal(t, [4]uint64{0, 64, uint64(there.mr.LKey), uint64(there.mr.RKey)},
		[4]uint64{uint64(mr.Addr), mr.Length, uint64(mr.LKey), uint64(mr.RKey)})
	assert.Equal(t, [2]uint32{r.pd[1].Handle, there.mr.Handle}, [2]uint32{pd.Handle, mr.Handle})

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
	copy(here.bytes, "there")
	wr := r.send(1, ibv.WR_RDMA_WRITE, here.sge(0, 5))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: there.at(3), RKey: mr.RKey}
	require.NoError(t, r.post(from, wr))
	require.Equal(t, ibv.WC_SUCCESS, r.poll(own).Status)
	assert.Equal(t, "there", string(there.bytes[3:8]))
	wr = r.send(1, ibv.WR_RDMA_WRITE, ibv.SGE{Addr: there.at(4), Length: 4, LKey: mr.LKey})
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: here.at(0), RKey: here.mr.RKey}
	require.NoError(t, r.post(to, wr))
	require.Equal(t, ibv.WC_SUCCESS, r.poll(cq).Status)
	assert.Equal(t, "heree", string(here.bytes[:5]))

	assert.ErrorIs(t, verbs.DeallocPD(pd), syscall.EBUSY)
	assert.ErrorIs(t, verbs.DeallocPD(r.pd[1]), syscall.EBUSY, "the region and the queue pair are in it, by any handle")
	require.NoError(t, verbs.UnimportMR(mr))
	require.NoError(t, verbs.UnimportPD(pd))
	require.NoError(t, r.post(to, wr), "what was made in the domain stays")
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

// TestDestroyedByAnyHandle: any handle destroys the object. The others can be unimported, and no more.
func TestDestroyedByAnyHandle(t *testing.T) {
	for _, byImport := range []bool{false, true} {
		r := newRig(t, Options{})
		before := r.fabric.Resources()
		c := r.imported(0)
		pd, err := verbs.AllocPD(r.context[0])
		require.NoError(t, err)
		dm, err := verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: 64})
		require.NoError(t, err)
		memory := outside[byte](r, 64)
		mr, err := verbs.RegMR(pd, pointerTo(&memory[0]), 64, everything)
		require.NoError(t, err)
		pd2, err := verbs.ImportPD(c, pd.Handle)
		require.NoError(t, err)
		mr2, err := verbs.ImportMR(pd2, mr.Handle)
		require.NoError(t, err)
		dm2, err := verbs.ImportDM(c, dm.Handle)
		require.NoError(t, err)
		word := outside[byte](r, 8)
		copy(word, "shared")
		require.NoError(t, verbs.MemcpyToDM(dm2, 8, pointerTo(&word[0]), 8))
		clear(word)
		require.NoError(t, verbs.MemcpyFromDM(pointerTo(&word[0]), dm, 8, 8))
		assert.Equal(t, "shared\x00\x00", string(word))
		const zeroBased = everything&^ibv.ACCESS_FLUSH_GLOBAL | ibv.ACCESS_ZERO_BASED
		onDM, err := verbs.RegDMMR(pd2, dm2, 0, 64, zeroBased)
		require.NoError(t, err)
		assert.ErrorIs(t, verbs.FreeDM(dm), syscall.EBUSY)
		assert.ErrorIs(t, verbs.FreeDM(dm2), syscall.EBUSY)
		require.NoError(t, verbs.DeregMR(onDM))

		key := mr.RKey
		keep := [2]*ibv.MR{mr, mr2}
		keepPD, keepDM := [2]*ibv.PD{pd, pd2}, [2]*ibv.DM{dm, dm2}
		if byImport {
			keep, keepPD, keepDM = [2]*ibv.MR{mr2, mr}, [2]*ibv.PD{pd2, pd}, [2]*ibv.DM{dm2, dm}
		}
		_, err = verbs.ReregMR(mr2, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, 0)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorIs(t, verbs.DeallocPD(keepPD[0]), syscall.EBUSY)
		require.NoError(t, verbs.DeregMR(keep[0]))
		r.fabric.Mu.Lock()
		assert.Nil(t, r.fabric.devices[0].Keys.Get(key))
		r.fabric.Mu.Unlock()
		through, err := verbs.RegMR(pd2, pointerTo(&memory[0]), 64, everything)
		require.NoError(t, err)
		assert.ErrorIs(t, verbs.DeallocPD(pd), syscall.EBUSY, "a region that was made by the import")
		assert.ErrorIs(t, verbs.DeallocPD(pd2), syscall.EBUSY)
		require.NoError(t, verbs.DeregMR(through))
		require.NoError(t, verbs.FreeDM(keepDM[0]))
		require.NoError(t, verbs.DeallocPD(keepPD[0]))

		assert.ErrorIs(t, verbs.DeregMR(keep[1]), syscall.EINVAL, "it was destroyed")
		assert.ErrorIs(t, verbs.FreeDM(keepDM[1]), syscall.EINVAL)
		assert.ErrorIs(t, verbs.DeallocPD(keepPD[1]), syscall.EINVAL)
		assert.ErrorIs(t, verbs.MemcpyToDM(keepDM[1], 0, pointerTo(&word[0]), 8), syscall.EINVAL)
		_, err = verbs.RegMR(keepPD[1], pointerTo(&memory[0]), 64, everything)
		assert.ErrorIs(t, err, syscall.EINVAL)
		_, err = verbs.ImportPD(c, keepPD[1].Handle)
		assert.ErrorIs(t, err, syscall.ENOENT)
		_, err = verbs.ImportMR(r.pd[0], keep[1].Handle)
		assert.ErrorIs(t, err, syscall.ENOENT)
		_, err = verbs.ImportDM(c, keepDM[1].Handle)
		assert.ErrorIs(t, err, syscall.ENOENT)
		assert.Equal(t, before["pd"]+1, r.fabric.Resources()["pd"], "a handle that is held")
		require.NoError(t, verbs.UnimportMR(keep[1]))
		require.NoError(t, verbs.UnimportDM(keepDM[1]))
		require.NoError(t, verbs.UnimportPD(keepPD[1]))
		require.NoError(t, verbs.CloseDevice(c))
		assert.Equal(t, before, r.fabric.Resources())
	}
}

// TestUnimportedFirst: the handle that an object was made with may go before another one destroys the object.
func TestUnimportedFirst(t *testing.T) {
	r := newRig(t, Options{})
	before := r.fabric.Resources()
	c := r.imported(0)
	pd, err := verbs.AllocPD(r.context[0])
	require.NoError(t, err)
	dm, err := verbs.AllocDM(r.context[0], &ibv.AllocDMAttr{Length: 64})
	require.NoError(t, err)
	memory := outside[byte](r, 64)
	mr, err := verbs.RegMR(pd, pointerTo(&memory[0]), 64, everything)
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

// TestImportedWindow: a window is bound by an imported region, which then cannot go.
func TestImportedWindow(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	window, err := verbs.AllocMW(s.pd[1], ibv.MW_TYPE_2)
	require.NoError(t, err)
	bound, err := verbs.RegMR(s.pd[1], pointerTo(&s.there.bytes[0]), 64, everything|ibv.ACCESS_MW_BIND)
	require.NoError(t, err)
	imported, err := verbs.ImportMR(s.pd[1], bound.Handle)
	require.NoError(t, err)
	wr := s.send(1, ibv.WR_BIND_MW)
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(window), RKey: window.RKey&^0xff | (window.RKey+1)&0xff,
		BindInfo: ibv.MWBindInfo{MR: ibv.PtrTo(imported), Addr: s.there.at(0), Length: 8,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}}
	require.NoError(t, s.post(s.p.b, wr))
	require.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.bSend).Status)
	assert.ErrorIs(t, verbs.DeregMR(imported), syscall.EBUSY)
	assert.ErrorIs(t, verbs.DeregMR(bound), syscall.EBUSY)
	require.NoError(t, verbs.DeallocMW(window))
	require.NoError(t, verbs.DeregMR(imported))
	require.NoError(t, verbs.UnimportMR(bound))
}

// TestImportRefused: a descriptor that is of no open device of the fabric is refused, and stays the caller's.
func TestImportRefused(t *testing.T) {
	r, other := newRig(t, Options{}), newRig(t, Options{})
	refused := func(file int, want error, why string) {
		t.Helper()
		_, err := verbs.From{Backend: r.fabric}.ImportDevice(file)
		assert.ErrorIs(t, err, want, why)
	}
	refused(-1, syscall.EINVAL, "no descriptor")
	refused(1<<20, syscall.EINVAL, "a closed one")
	refused(int(r.context[0].CmdFD), syscall.EINVAL, "it is no duplicate: closing the device would close it twice")
	refused(int(r.context[0].AsyncFD), syscall.EINVAL, "another file of the device")
	memory, _ := memoryFile(t, 4096)
	defer unix.Close(memory)
	refused(memory, syscall.EINVAL, "any memory")
	of := other.duplicate(other.context[0])
	defer unix.Close(of)
	refused(of, syscall.ENODEV, "another fabric's")
	assert.True(t, isOpen(int32(of)))

	foreign, err := unix.MemfdCreate("foreign", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(foreign)
	ours := make([]byte, 256)
	n, err := unix.Pread(of, ours, 0)
	require.NoError(t, err)
	ours[n-2] ^= 1 // the last digit of the process's number
	_, err = unix.Write(foreign, ours[:n])
	require.NoError(t, err)
	refused(foreign, syscall.EINVAL, "whoever has it can write to it")
	_, err = unix.FcntlInt(uintptr(foreign), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.NoError(t, err)
	refused(foreign, syscall.EOPNOTSUPP, "another process's")

	pd, err := verbs.AllocPD(r.context[1])
	require.NoError(t, err)
	_, err = verbs.ImportPD(r.context[0], pd.Handle)
	assert.ErrorIs(t, err, syscall.ENOENT, "another device's")
	opened, err := verbs.OpenDevice(r.context[1].Device.Deref())
	require.NoError(t, err)
	_, err = verbs.ImportPD(opened, pd.Handle)
	assert.ErrorIs(t, err, syscall.ENOENT, "it was opened once more, not imported")
	again, err := verbs.ImportPD(r.context[1], pd.Handle)
	require.NoError(t, err, "into the context that it is of")
	require.NoError(t, verbs.DeallocPD(pd))
	require.NoError(t, verbs.UnimportPD(again))

	late := r.duplicate(opened)
	imported, err := verbs.From{Backend: r.fabric}.ImportDevice(late)
	require.NoError(t, err)
	last := r.duplicate(opened)
	defer unix.Close(last)
	file := opened.CmdFD
	require.NoError(t, verbs.CloseDevice(opened))
	assert.False(t, isOpen(file))
	assert.True(t, isOpen(int32(late)))
	require.NoError(t, verbs.CloseDevice(imported))
	assert.False(t, isOpen(int32(late)))
	refused(last, syscall.ENODEV, "nobody has the device open any more")
}
