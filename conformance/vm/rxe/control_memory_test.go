// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

const (
	local  = ibv.ACCESS_LOCAL_WRITE
	remote = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC
)

var memoryControls = []control{
	{verb: "ibv_alloc_pd", what: works,
		call: func(r *testbed.Testbed) error { return created(r, verbs.DeallocPD)(verbs.AllocPD(r.Context)) }},
	{verb: "ibv_alloc_pd", what: "more than max_pd", why: "the device has a million of them"},
	{verb: "ibv_dealloc_pd", what: works, call: func(r *testbed.Testbed) error {
		pd, err := verbs.AllocPD(r.Context)
		r.Check(err)
		return verbs.DeallocPD(pd)
	}},
	{verb: "ibv_dealloc_pd", what: "memory regions left",
		call: func(r *testbed.Testbed) error { r.Buffer(64, local); return verbs.DeallocPD(r.PD) }},
	{verb: "ibv_dealloc_pd", what: "queue pairs left", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		r.QP(ibv.QPT_RC, cq, cq)
		return verbs.DeallocPD(r.PD)
	}},
	{verb: "ibv_dealloc_pd", what: "address handles left",
		call: func(r *testbed.Testbed) error { r.Handle(); return verbs.DeallocPD(r.PD) }},
	{verb: "ibv_dealloc_pd", what: "memory windows left",
		call: func(r *testbed.Testbed) error { r.Window(); return verbs.DeallocPD(r.PD) }},
	{verb: "ibv_dealloc_pd", what: "shared receive queues left",
		call: func(r *testbed.Testbed) error { r.SRQ(4); return verbs.DeallocPD(r.PD) }},

	{verb: "ibv_reg_mr", what: works, call: reach(remote, 0)},
	{verb: "ibv_reg_mr", what: "remote write without local write", call: reg(ibv.ACCESS_REMOTE_WRITE)},
	{verb: "ibv_reg_mr", what: "remote atomic without local write", call: reg(ibv.ACCESS_REMOTE_ATOMIC)},
	{verb: "ibv_reg_mr", what: "remote read without local write, which is allowed", call: reg(ibv.ACCESS_REMOTE_READ)},
	{verb: "ibv_reg_mr", what: "no access but local read, which is allowed", call: reg(0)},
	{verb: "ibv_reg_mr", what: "window binding, which is allowed", call: reach(remote|ibv.ACCESS_MW_BIND, 0)},
	{verb: "ibv_reg_mr", what: "relaxed ordering, which is optional",
		call: reach(remote|ibv.ACCESS_RELAXED_ORDERING, 0)},
	{verb: "ibv_reg_mr", what: "huge page flag on ordinary pages", call: reach(remote|ibv.ACCESS_HUGETLB, 0)},
	{verb: "ibv_reg_mr", what: "zero based, reached by offset", call: reach(remote|ibv.ACCESS_ZERO_BASED, zeroBased)},
	{verb: "ibv_reg_mr", what: "zero based, reached by address", call: reach(remote|ibv.ACCESS_ZERO_BASED, 0)},
	{verb: "ibv_reg_mr", what: "on demand", call: reach(remote|ibv.ACCESS_ON_DEMAND, 0)},
	{verb: "ibv_reg_mr", what: "on demand with the huge page flag on ordinary pages",
		call: reach(remote|ibv.ACCESS_ON_DEMAND|ibv.ACCESS_HUGETLB, 0)},
	{verb: "ibv_reg_mr", what: "on demand, all memory", call: func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMR(r.PD, 0, 1<<64-1, local|ibv.ACCESS_ON_DEMAND))
	}},
	{verb: "ibv_reg_mr", what: "flush to global visibility", call: reach(remote|ibv.ACCESS_FLUSH_GLOBAL, 0)},
	{verb: "ibv_reg_mr", what: "flush to persistence of memory that is not persistent",
		call: reg(local | ibv.ACCESS_FLUSH_PERSISTENT)},
	{verb: "ibv_reg_mr", what: "unknown access flag", call: reg(local | 1<<18)},
	{verb: "ibv_reg_mr", what: "unknown optional access flag", call: reg(local | 1<<29)},
	{verb: "ibv_reg_mr", what: "unmapped memory", call: func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMR(r.PD, 0x10, 4096, local))
	}},
	{verb: "ibv_reg_mr", what: "beyond the end of the address space", call: func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMR(r.PD, ^uintptr(0)-4095, 1<<20, local))
	}},
	{verb: "ibv_reg_mr", what: "read-only memory, for writing", call: func(r *testbed.Testbed) error {
		memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
		r.Check(err)
		defer unix.Munmap(memory)
		return created(r, verbs.DeregMR)(verbs.RegMR(r.PD, address(&memory[0]), 4096, local))
	}},
	{verb: "ibv_reg_mr", what: "no bytes", call: func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMR(r.PD, address(&r.Memory(64)[0]), 0, local))
	}},
	{verb: "ibv_reg_mr_iova", what: works, call: reachAt(0x10_0000)},
	{verb: "ibv_reg_mr_iova", what: "another offset in the page than the address has", call: reachAt(0x10_0008)},
	{verb: "ibv_reg_mr_iova", what: "wraps around", call: reachAt(1<<64 - 64)},
	{verb: "ibv_reg_mr_iova2", what: works, call: func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMRIOVA2(r.PD, address(&r.Memory(64)[0]), 64, 0x10_0000,
			local|ibv.ACCESS_RELAXED_ORDERING))
	}},
	{verb: "ibv_reg_mr_iova2", what: "remote write without local write", call: func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMRIOVA2(r.PD, address(&r.Memory(64)[0]), 64, 0x10_0000,
			ibv.ACCESS_REMOTE_WRITE))
	}},
	{verb: "ibv_dereg_mr", what: works, call: reg(local)},
	{verb: "ibv_dereg_mr", what: "a window is bound to it", call: func(r *testbed.Testbed) error {
		p := r.Pair(ibv.QPT_RC)
		memory := r.Memory(bufferLen)
		mr, err := verbs.RegMR(r.PD, address(&memory[0]), bufferLen, remote|ibv.ACCESS_MW_BIND)
		r.Check(err)
		r.Defer(func() {
			if err != nil { // if the window was deallocated
				r.Check(verbs.DeregMR(mr))
			}
		})
		r.Bound(p.A, p.ASend, &testbed.Buffer{Bytes: memory, MR: mr})
		err = verbs.DeregMR(mr)
		return err
	}},

	{verb: "ibv_rereg_mr", what: "new translation", call: rereg(ibv.REREG_MR_CHANGE_TRANSLATION, 64, 0)},
	{verb: "ibv_rereg_mr", what: "new protection domain", call: rereg(ibv.REREG_MR_CHANGE_PD, 0, 0)},
	{verb: "ibv_rereg_mr", what: "new access", call: rereg(ibv.REREG_MR_CHANGE_ACCESS, 0, remote)},
	{verb: "ibv_rereg_mr", what: "input error: unknown flag", call: rereg(1<<7, 0, 0)},
	{verb: "ibv_rereg_mr", what: "input error: translation to zero bytes",
		call: rereg(ibv.REREG_MR_CHANGE_TRANSLATION, 0, 0)},
	{verb: "ibv_rereg_mr", what: "input error: access without the flag for it",
		call: rereg(ibv.REREG_MR_CHANGE_TRANSLATION, 64, local)},
	{verb: "ibv_rereg_mr", what: "new memory cannot be kept from children",
		why: "where the kernel copies registered pages at a fork, the library has nothing to do at a fork"},
	{verb: "ibv_rereg_mr", what: "old memory cannot be given to children", why: "the same"},
	{verb: "ibv_rereg_mr", what: "command error, and new memory cannot be given to children", why: "the same"},

	{verb: "ibv_advise_mr", what: "memory registered on demand", call: advise(local|ibv.ACCESS_ON_DEMAND, prefetch{})},
	{verb: "ibv_advise_mr", what: "for writing",
		call: advise(local|ibv.ACCESS_ON_DEMAND, prefetch{advice: ibv.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE})},
	{verb: "ibv_advise_mr", what: "for writing, of read-only memory",
		call: advise(ibv.ACCESS_ON_DEMAND, prefetch{advice: ibv.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE})},
	{verb: "ibv_advise_mr", what: "out of the region's range",
		call: advise(local|ibv.ACCESS_ON_DEMAND, prefetch{beyond: 4096})},
	{verb: "ibv_advise_mr", what: "invalid key", call: advise(local|ibv.ACCESS_ON_DEMAND, prefetch{key: 0xff00})},
	{verb: "ibv_advise_mr", what: "unknown flag", call: advise(local|ibv.ACCESS_ON_DEMAND, prefetch{flags: 1 << 20})},
	{verb: "ibv_advise_mr", what: "unknown advice", call: advise(local|ibv.ACCESS_ON_DEMAND, prefetch{advice: 77})},
	{verb: "ibv_advise_mr", what: "memory that is not registered on demand", call: advise(local, prefetch{})},
}

// prefetch holds invalid arguments for prefetching a region.
type prefetch struct {
	advice ibv.IBUverbsAdviseMRAdvice
	flags  ibv.IBUverbsAdviseMRFlag
	beyond uint64
	key    uint32
}

// advise registers memory and prefetches it. If registration fails, it returns that error.
func advise(access ibv.AccessFlags, p prefetch) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		memory := r.Memory(4096)
		mr, err := verbs.RegMR(r.PD, address(&memory[0]), 4096, access)
		if err != nil {
			return fmt.Errorf("ibv_reg_mr %s", errnoName(err))
		}
		r.Defer(func() { r.Check(verbs.DeregMR(mr)) })
		sge := &testbed.Records[ibv.SGE](r, 1)[0]
		*sge = (&testbed.Buffer{Bytes: memory, MR: mr}).SGE(0, 4096)
		sge.Addr += p.beyond
		sge.LKey ^= p.key
		return verbs.AdviseMR(r.PD, p.advice, p.flags|ibv.IB_UVERBS_ADVISE_MR_FLAG_FLUSH, sge, 1)
	}
}

// zeroBased makes reach address the remote bytes by offset.
const zeroBased = 1

// reg registers memory.
func reg(access ibv.AccessFlags) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		return created(r, verbs.DeregMR)(verbs.RegMR(r.PD, address(&r.Memory(4096)[0]), 4096, access))
	}
}

// reach registers memory and makes a peer write to it and read it back.
func reach(access ibv.AccessFlags, based int) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		memory := r.Memory(4096)
		mr, err := verbs.RegMR(r.PD, address(&memory[0]), 4096, access)
		if err != nil {
			return err
		}
		r.Defer(func() { r.Check(verbs.DeregMR(mr)) })
		b := &testbed.Buffer{Bytes: memory, MR: mr}
		at := b.Address(0)
		if based == zeroBased {
			at = 0
		}
		return exchange(r, b, at)
	}
}

// reachAt is like reach, for memory registered with a different I/O virtual address.
func reachAt(iova uint64) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		memory := r.Memory(4096)
		mr, err := verbs.RegMRIOVA(r.PD, address(&memory[0]), 4096, iova, remote)
		if err != nil {
			return err
		}
		r.Defer(func() { r.Check(verbs.DeregMR(mr)) })
		return exchange(r, &testbed.Buffer{Bytes: memory, MR: mr}, iova)
	}
}

// exchange makes a peer write to memory at an address and read it back.
func exchange(r *testbed.Testbed, to *testbed.Buffer, at uint64) error {
	p, from := r.Pair(ibv.QPT_RC), r.Buffer(256, local)
	copy(from.Bytes, pattern())
	for i, opcode := range []ibv.WROpcode{ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ} {
		l := r.Sends(1)
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = opcode, ibv.SEND_SIGNALED, from.SGE(i*128, moved)
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: at, RKey: to.MR.RKey}
		_, err := l.Post(p.A)
		r.Check(err)
		if err := status(r.Completion(p.ASend)); err != nil {
			return err
		}
	}
	if !bytes.Equal(to.Bytes[:moved], pattern()) || !bytes.Equal(from.Bytes[128:128+moved], pattern()) {
		return failed("wrong data")
	}
	return nil
}

// rereg changes a region. The result includes the failure code of C.
func rereg(flags ibv.ReregMRFlags, length uint64, access ibv.AccessFlags) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		var pd *ibv.PD // deallocated after the region that may use it
		if flags&ibv.REREG_MR_CHANGE_PD != 0 {
			var err error
			pd, err = verbs.AllocPD(r.Context)
			r.Check(err)
			r.Defer(func() { r.Check(verbs.DeallocPD(pd)) })
		}
		b := r.Buffer(64, local)
		code, err := verbs.ReregMR(b.MR, flags, pd, address(&r.Memory(64)[0]), length, access)
		if err == nil {
			return nil
		}
		return fmt.Errorf("%s %s", trim(code.String()), errnoName(err))
	}
}
