// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

const maxSGE = 32

// recipe is struct recipe of c/post.c: a work request as plain values.
type recipe struct {
	wrID                         uint64
	opcode, flags                uint32
	extra, arm, xrc, tail        uint32
	imm, rkey                    uint32
	remoteAddr, compareAdd, swap uint64
	ah                           uint64
	remoteQPN, remoteQKey        uint32
	srqn, mwRKey                 uint32
	mw, mr, bindAddr, bindLength uint64
	bindAccess, mss              uint32
	hdr                          uint64
	hdrSz, numSGE                uint32
	list                         uint64
	sge                          [maxSGE]ibv.SGE
}

const (
	extraNone, extraImm, extraInvalidate = 0, 1, 2
	armNone, armRDMA, armAtomic, armUD   = 0, 1, 2, 3
	tailNone, tailBind, tailTSO          = 0, 1, 2
	extras, arms, tails                  = 3, 4, 3
	allFlags                             = ibv.SEND_FENCE | ibv.SEND_SIGNALED | ibv.SEND_SOLICITED | ibv.SEND_INLINE |
		ibv.SEND_IP_CSUM
)

var opcodes = []ibv.WROpcode{
	ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP,
	ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_LOCAL_INV, ibv.WR_BIND_MW, ibv.WR_SEND_WITH_INV, ibv.WR_TSO, ibv.WR_DRIVER1,
	ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE,
}

// shape determines how a recipe is built, without its values.
type shape struct {
	opcode                ibv.WROpcode
	flags                 ibv.SendFlags
	extra, arm, xrc, tail uint32
	sges                  int
}

// shapes yields every combination of opcode, arm, flags and SGE count, including those that no device supports.
func shapes(yield func([]shape) bool) {
	for _, opcode := range opcodes {
		for variant := range uint32(extras * arms * tails * 2) {
			var list []shape
			for flags := range allFlags + 1 {
				for _, sges := range []int{0, 1, 2, maxSGE} {
					list = append(list, shape{
						opcode, flags, variant % extras, variant / extras % arms, variant / (extras * arms) % 2,
						variant / (extras * arms * 2), sges,
					})
				}
			}
			if !yield(list) {
				return
			}
		}
	}
}

func randomShape(r *rand.Rand) shape {
	return shape{
		opcodes[r.IntN(len(opcodes))], ibv.SendFlags(r.IntN(int(allFlags) + 1)), r.Uint32N(extras), r.Uint32N(arms),
		r.Uint32N(2), r.Uint32N(tails), r.IntN(maxSGE + 1),
	}
}

// values fills a shape with random values. Inline data and headers are in readable memory; other addresses are random.
func (s shape) values(r *rand.Rand, readable []byte) recipe {
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(readable))))
	c := recipe{
		wrID: number(r), opcode: uint32(s.opcode), flags: uint32(s.flags), extra: s.extra, arm: s.arm, xrc: s.xrc,
		tail: s.tail,
		imm:  uint32(number(r)), rkey: uint32(number(r)), remoteAddr: number(r), compareAdd: number(r), swap: number(r),
		ah: number(r), remoteQPN: uint32(number(r)), remoteQKey: uint32(number(r)), srqn: uint32(number(r)),
		mwRKey: uint32(number(r)),
		mw:     number(r), mr: number(r), bindAddr: number(r), bindLength: number(r), bindAccess: uint32(number(r)),
		mss: uint32(uint16(number(r))),
		hdr: base + r.Uint64N(64), hdrSz: r.Uint32N(64), numSGE: uint32(s.sges),
	}
	for i := range c.sge[:s.sges] {
		c.sge[i] = ibv.SGE{Addr: number(r), Length: uint32(number(r)), LKey: uint32(number(r))}
		if s.flags&ibv.SEND_INLINE != 0 {
			c.sge[i].Addr, c.sge[i].Length = base+r.Uint64N(64), r.Uint32N(64)
		}
	}
	return c
}

// number returns a random number, with a preference for the ends of ranges.
func number(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return uint64(int64(r.IntN(5)) - 2)
	case 1:
		return 1<<r.IntN(64) - r.Uint64N(2)
	default:
		return r.Uint64()
	}
}

// fill builds the work request in Go.
func (c *recipe) fill(wr *ibv.SendWR) {
	wr.WRID, wr.NumSGE, wr.Opcode, wr.SendFlags = c.wrID, int32(c.numSGE), ibv.WROpcode(c.opcode),
		ibv.SendFlags(c.flags)
	switch c.extra {
	case extraImm:
		*wr.ImmData() = ibv.ToBE32(c.imm)
	case extraInvalidate:
		*wr.InvalidateRKey() = c.imm
	}
	switch c.arm {
	case armRDMA:
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: c.remoteAddr, RKey: c.rkey}
	case armAtomic:
		*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: c.remoteAddr, CompareAdd: c.compareAdd, Swap: c.swap, RKey: c.rkey}
	case armUD:
		*wr.WR.UD() = ibv.SendUD{AH: ibv.Ptr[ibv.AH](c.ah), RemoteQPN: c.remoteQPN, RemoteQKey: c.remoteQKey}
	}
	if c.xrc != 0 {
		wr.QPType.XRC().RemoteSRQN = c.srqn
	}
	switch c.tail {
	case tailBind:
		info := ibv.MWBindInfo{MR: ibv.Ptr[ibv.MR](c.mr), Addr: c.bindAddr, Length: c.bindLength,
			MWAccessFlags: ibv.AccessFlags(c.bindAccess)}
		*wr.BindMW() = ibv.SendBindMW{MW: ibv.Ptr[ibv.MW](c.mw), RKey: c.mwRKey, BindInfo: info}
	case tailTSO:
		*wr.TSO() = ibv.SendTSO{Hdr: uintptr(c.hdr), HdrSz: uint16(c.hdrSz), MSS: uint16(c.mss)}
	}
}

// String formats the recipe without unused fields.
func (c *recipe) String() string {
	return fmt.Sprintf("%v %v extra %d arm %d xrc %d tail %d, %d SGEs", ibv.WROpcode(c.opcode), ibv.SendFlags(c.flags),
		c.extra, c.arm, c.xrc, c.tail, c.numSGE)
}
