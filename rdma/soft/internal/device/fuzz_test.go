// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// FuzzRequests posts requests with arbitrary fields. Each returns an error or completes, and memory without a valid key
// is not modified.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 255, 254, 253, 252, 251, 250, 249, 248, 130, 140, 150, 200, 210})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTestbed(t, Options{Virtual: true})
		kinds := []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD}
		h := &fuzzInput{Data: data}
		p := r.pair(kinds[h.Next()%3])
		guard := offHeap[byte](r, 3*4096)
		for i := range guard {
			guard[i] = 0x5a
		}
		inner := guard[4096:8192]
		access := ibv.AccessFlags(h.Or(uint64(allAccess)))
		mr, err := verbs.RegMR(r.pd[1], pointerTo(&inner[0]), uint64(len(inner)), access)
		if err != nil {
			return
		}
		defer func() { require.NoError(t, verbs.DeregMR(mr)) }()
		local := r.buffer(0, 4096, allAccess)
		null, err := verbs.AllocNullMR(r.pd[0])
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeregMR(null)) }()
		dm, err := verbs.AllocDM(r.context[1], &ibv.AllocDMAttr{Length: 64})
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.FreeDM(dm)) }()
		dmMR, err := verbs.RegDMMR(r.pd[1], dm, 8, 48, allAccess|ibv.ACCESS_ZERO_BASED)
		require.NoError(t, err)
		defer func() { require.NoError(t, verbs.DeregMR(dmMR)) }()
		h.Well = []uint64{uint64(null.LKey), uint64(dmMR.RKey), 40, uint64(mr.LKey), uint64(mr.RKey),
			uint64(local.mr.LKey), uint64(mem.AddressOf(&inner[0])), uint64(mem.AddressOf(&inner[4095])), local.at(0),
			local.at(4095), 8, 4096, 1 << 31, 1 << 32}
		ah := r.ah(0, 1)
		sges := offHeap[ibv.SGE](r, 8)
		sge := func() ibv.SGE {
			return ibv.SGE{Addr: h.Or(local.at(0)), Length: uint32(h.Or(8)), LKey: uint32(h.Or(uint64(local.mr.LKey)))}
		}
		send, recv := &offHeap[ibv.SendWR](r, 1)[0], &offHeap[ibv.RecvWR](r, 1)[0]
		for len(h.Data) > 0 {
			for i := range sges {
				sges[i] = sge()
			}
			if h.Next()%3 == 0 {
				*recv = ibv.RecvWR{WRID: h.Next(), SGList: ibv.PtrTo(&sges[0]), NumSGE: int32(h.Or(2))}
				for i := range sges {
					sges[i].Addr, sges[i].LKey = h.Or(uint64(mem.AddressOf(&inner[0]))), uint32(h.Or(uint64(mr.LKey)))
				}
				verbs.PostRecv(p.b, recv, &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0])
				continue
			}
			*send = ibv.SendWR{WRID: h.Next(), Opcode: ibv.WROpcode(h.Or(h.Next() % 16)),
				SendFlags: ibv.SendFlags(h.Or(uint64(ibv.SEND_SIGNALED))), SGList: ibv.PtrTo(&sges[0]),
				NumSGE: int32(h.Or(1))}
			raw := unsafe.Slice((*uint64)(unsafe.Pointer(&send.WR)), 4)
			for i, want := range []uint64{uint64(mem.AddressOf(&inner[0])), uint64(mr.RKey), 8, uint64(mr.RKey)} {
				raw[i] = h.Or(want)
			}
			// an address that is not a handle is an error; an address without memory must not be dereferenced
			if p.a.QPType == ibv.QPT_UD {
				*send.WR.UD() = ibv.SendUD{AH: ibv.Ptr[ibv.AH](h.Or(uint64(mem.AddressOf(ah)))),
					RemoteQPN: uint32(h.Or(uint64(p.b.QPNum))), RemoteQKey: uint32(h.Or(testQKey))}
			}
			if send.SendFlags&ibv.SEND_INLINE != 0 { // inline data is read without a check of its address, as in C
				for i := range sges {
					sges[i].Addr = local.at(0)
				}
			}
			if send.Opcode == ibv.WR_BIND_MW {
				*send.BindMW() = ibv.SendBindMW{MW: ibv.Ptr[ibv.MW](h.Next()), RKey: uint32(h.Next()),
					BindInfo: ibv.MWBindInfo{MR: ibv.Ptr[ibv.MR](h.Next()), Length: h.Next()}}
			}
			r.post(p.a, send)
			for _, cq := range []*ibv.CQ{p.aSend, p.bRecv, p.bSend, p.aRecv} {
				for range 4 {
					if _, ok := r.tryPoll(cq); !ok {
						break
					}
				}
			}
		}
		for i, b := range guard {
			if (i < 4096 || i >= 8192) && b != 0x5a {
				t.Fatalf("byte %d outside the region was written", i-4096)
			}
		}
	})
}

// FuzzAttributes calls control verbs with arbitrary attributes. Each returns an error or an object that can be
// destroyed.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 255, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTestbed(t, Options{Virtual: true})
		h := &fuzzInput{Data: data}
		cq := r.cq(0, 16)
		small := func() uint32 { return uint32(h.Next()) }
		h.Well = []uint64{uint64(mem.AddressOf(cq)), uint64(mem.AddressOf(r.pd[0])), 0, 1, 2, 3, 4, 16}
		if created, err := verbs.CreateCQ(r.context[0], int(int32(h.Next()%(1<<12)))-5, uintptr(h.Next()), nil,
			int(int32(h.Next()))); err == nil {
			require.NoError(t, verbs.DestroyCQ(created))
		}
		srq := &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: small(), MaxSGE: small(), SRQLimit: small()}}
		if created, err := verbs.CreateSRQ(r.pd[0], srq); err == nil {
			verbs.ModifySRQ(created, &ibv.SRQAttr{MaxWR: small(), SRQLimit: small()}, ibv.SRQAttrMask(h.Next()))
			require.NoError(t, verbs.DestroySRQ(created))
		}
		memory := r.buffer(0, 4096, allAccess|ibv.ACCESS_ON_DEMAND)
		if dm, err := verbs.AllocDM(r.context[0],
			&ibv.AllocDMAttr{Length: h.Next() % 4097, LogAlignReq: small(), CompMask: uint32(h.Or(0))}); err == nil {
			verbs.MemcpyToDM(dm, h.Next(), pointerTo(&memory.bytes[0]), h.Next())
			verbs.MemcpyFromDM(pointerTo(&memory.bytes[0]), dm, h.Next(), h.Next())
			if mr, err := verbs.RegDMMR(r.pd[0], dm, h.Next(), h.Next(),
				ibv.AccessFlags(h.Or(uint64(ibv.ACCESS_ZERO_BASED)))); err == nil {
				require.ErrorIs(t, verbs.FreeDM(dm), syscall.EBUSY)
				require.NoError(t, verbs.DeregMR(mr))
			}
			require.NoError(t, verbs.FreeDM(dm))
		}
		sge := &offHeap[ibv.SGE](r, 1)[0]
		*sge = ibv.SGE{Addr: h.Or(memory.at(0)), Length: small(), LKey: uint32(h.Or(uint64(memory.mr.LKey)))}
		verbs.AdviseMR(r.pd[0], ibv.IBUverbsAdviseMRAdvice(small()%5), ibv.IBUverbsAdviseMRFlag(h.Or(0)), sge, 1)
		init := &ibv.QPInitAttrEx{
			QPType: ibv.QPType(h.Or(2)), SendCQ: ibv.Ptr[ibv.CQ](h.Or(uint64(mem.AddressOf(cq)))),
			RecvCQ: ibv.Ptr[ibv.CQ](h.Or(uint64(mem.AddressOf(cq)))), SRQ: ibv.Ptr[ibv.SRQ](h.Or(0)),
			Cap: ibv.QPCap{MaxSendWR: small() % (1 << 17), MaxRecvWR: small() % (1 << 17), MaxSendSGE: small(),
				MaxRecvSGE: small(), MaxInlineData: small()},
			CompMask: ibv.QPInitAttrMask(h.Or(uint64(ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS))),
			PD:       ibv.Ptr[ibv.PD](h.Or(uint64(mem.AddressOf(r.pd[0])))),
			XRCD:     ibv.Ptr[ibv.XRCD](h.Or(0)), SendOpsFlags: ibv.QPCreateSendOpsFlags(h.Next()),
		}
		// The generated function would pass a context of another device to the C library.
		address, errno := impl.CreateQPEx(impl.Find[impl.Context](mem.AddressOf(r.context[0])), init)
		if errno != 0 {
			return
		}
		qp := mem.At[ibv.QP](address)
		defer func() { require.NoError(t, verbs.DestroyQP(qp)) }()
		for range 20 {
			attr := new(ibv.QPAttr)
			raw := unsafe.Slice((*uint32)(unsafe.Pointer(attr)), unsafe.Sizeof(*attr)/4)
			for i := range raw {
				raw[i] = uint32(h.Next())
			}
			attr.QPState = ibv.QPState(h.Or(uint64(attr.QPState % 7)))
			required, _, _ := ibv.ModifyQPMask(qp.QPType, qp.State, attr.QPState)
			verbs.ModifyQP(qp, attr, ibv.QPAttrMask(h.Or(uint64(required|ibv.QP_STATE))))
			require.NoError(t, verbs.QueryQP(qp, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
		}
	})
}
