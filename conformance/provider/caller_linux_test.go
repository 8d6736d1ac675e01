// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// caller makes the same calls as testdata/calls.c.
type caller struct {
	t       *testing.T
	out     io.Writer
	state   uint32
	kind    string
	context *ibv.Context
	pd      *ibv.PD
	cq      *ibv.CQ
	qp      *ibv.QP
	mr      *ibv.MR
	ah      *ibv.AH
	sends   []ibv.SendWR // outside the Go heap
	recvs   []ibv.RecvWR
	sges    [][callsSGEs]ibv.SGE
	rc, srd bool // rc: or xrc

	xrcd   *ibv.XRCD // xrc only
	srq    *ibv.SRQ
	number uint32 // number of srq
	target *ibv.QP
}

func (c *caller) below(n uint32) uint32 {
	c.state = c.state*1664525 + 1013904223
	return (c.state >> 16) % n
}

func (c *caller) check(err error) {
	c.t.Helper()
	require.NoError(c.t, err)
}

// memory maps the memory of all programs, followed by memory for lists.
func (c *caller) memory() unsafe.Pointer {
	at, err := unix.MmapPtr(-1, 0, unsafe.Pointer(ibv.Ptr[byte](callsAt).Deref()), 2*callsSize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	c.check(err)
	memory := unsafe.Slice((*byte)(at), callsSize)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	return at
}

func (c *caller) open() {
	at := c.memory()
	c.sends = unsafe.Slice((*ibv.SendWR)(unsafe.Add(at, callsSize)), 3)
	c.recvs = unsafe.Slice((*ibv.RecvWR)(unsafe.Add(at, callsSize+1024)), 3)
	c.sges = unsafe.Slice((*[callsSGEs]ibv.SGE)(unsafe.Add(at, callsSize+2048)), 3)
	var n int32
	list, err := from(c.t).GetDeviceList(&n)
	c.check(err)
	c.context, err = verbs.OpenDevice(list.Deref())
	c.check(err)
	verbs.FreeDeviceList(list)
	var device ibv.DeviceAttr
	var port ibv.PortAttr
	var gid ibv.GID
	index := 0
	if c.rc {
		index = 1
	}
	c.check(verbs.QueryDevice(c.context, &device))
	c.check(verbs.QueryPort(c.context, 1, &port))
	c.check(verbs.QueryGID(c.context, 1, index, &gid))
	c.pd, err = verbs.AllocPD(c.context)
	c.check(err)
	c.mr, err = verbs.RegMR(c.pd, callsAt, callsSize, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|
		ibv.ACCESS_REMOTE_READ)
	c.check(err)
	c.cq, err = verbs.CreateCQ(c.context, 2*callsDepth, 0, nil, 0)
	c.check(err)
	c.make()
	peer := c.qp
	if c.target != nil {
		peer = c.target
	}
	c.ready(c.qp, peer.QPNum, gid, uint8(index))
	if c.target != nil {
		c.ready(c.target, c.qp.QPNum, gid, uint8(index))
	}
}

func (c *caller) make() {
	capacity := ibv.QPCap{MaxSendWR: callsDepth, MaxRecvWR: callsDepth, MaxSendSGE: callsSGEs, MaxRecvSGE: callsSGEs,
		MaxInlineData: callsInline}
	var err error
	if !c.srd {
		a := ibv.QPInitAttr{SendCQ: ibv.PtrTo(c.cq), RecvCQ: ibv.PtrTo(c.cq), QPType: ibv.QPT_UD, Cap: capacity}
		if c.rc {
			a.QPType = ibv.QPT_RC
		}
		if c.kind == "xrc" {
			a.QPType = ibv.QPT_XRC_SEND
			a.Cap.MaxRecvWR, a.Cap.MaxRecvSGE = 0, 0
			c.makeTarget()
		}
		c.qp, err = verbs.CreateQP(c.pd, &a)
		c.check(err)
		return
	}
	x := ibv.QPInitAttrEx{SendCQ: ibv.PtrTo(c.cq), RecvCQ: ibv.PtrTo(c.cq), QPType: ibv.QPT_DRIVER, Cap: capacity,
		PD: ibv.PtrTo(c.pd), CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ}
	e := efadv.QPInitAttr{DriverQPType: efadv.QP_DRIVER_TYPE_SRD}
	c.qp, err = libefa.CreateQPEx(c.context, &x, &e, uint32(unsafe.Sizeof(e)))
	c.check(err)
}

// makeTarget creates an XRC queue pair that receives, and its shared receive queue.
func (c *caller) makeTarget() {
	var err error
	c.xrcd, err = verbs.OpenXRCD(c.context, &ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
		CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
	c.check(err)
	c.srq, err = verbs.CreateSRQEx(c.context, &ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: callsDepth, MaxSGE: callsSGEs},
		SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(c.pd), XRCD: ibv.PtrTo(c.xrcd), CQ: ibv.PtrTo(c.cq), CompMask: ibv.
				SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ})
	c.check(err)
	c.check(verbs.GetSRQNum(c.srq, &c.number))
	c.target, err = verbs.CreateQPEx(c.context, &ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(c.xrcd),
		CompMask: ibv.QP_INIT_ATTR_XRCD})
	c.check(err)
}

// postRecv posts to the shared receive queue if there is one.
func (c *caller) postRecv(w *ibv.RecvWR) error {
	var bad ibv.Ptr[ibv.RecvWR]
	if c.srq != nil {
		return verbs.PostSRQRecv(c.srq, w, &bad)
	}
	return verbs.PostRecv(c.qp, w, &bad)
}

func (c *caller) ready(qp *ibv.QP, peer uint32, gid ibv.GID, index uint8) {
	a := ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1, QKey: callsKey,
		QPAccessFlags: ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ, PathMTU: ibv.MTU_1024,
		DestQPNum: peer, MaxDestRdAtomic: 1, MaxRdAtomic: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
		AHAttr: ibv.AHAttr{IsGlobal: 1, PortNum: 1, GRH: ibv.GlobalRoute{DGID: gid, SGIDIndex: index}}}
	masks := [3]ibv.QPAttrMask{ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_QKEY, 0, ibv.QP_SQ_PSN}
	if c.rc {
		masks = [3]ibv.QPAttrMask{ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_ACCESS_FLAGS,
			ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN | ibv.QP_MAX_DEST_RD_ATOMIC |
				ibv.QP_MIN_RNR_TIMER,
			ibv.QP_SQ_PSN | ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC}
	}
	for i, mask := range masks {
		a.QPState = ibv.QPS_INIT + ibv.QPState(i)
		c.check(verbs.ModifyQP(qp, &a, ibv.QP_STATE|mask))
	}
	if !c.rc {
		var err error
		c.ah, err = verbs.CreateAH(c.pd, &a.AHAttr)
		c.check(err)
	}
}

func (c *caller) pieces(s *[callsSGEs]ibv.SGE, most uint32) int {
	n := int(1 + c.below(callsSGEs))
	for i := range n {
		s[i].Addr = callsAt + uint64(c.below(callsSize/2))
		s[i].Length = 1 + c.below(most)
		s[i].LKey = c.mr.LKey
	}
	return n
}

// code prints the result of a call.
func (c *caller) code(step int, name string, err error) {
	var code syscall.Errno
	if err != nil {
		require.True(c.t, errors.As(err, &code), "%v", err)
	}
	fmt.Fprintf(c.out, "%d: %s: %d\n", step, name, int(code))
}

func (c *caller) receive(step, n int) {
	for i := range n {
		w := &c.recvs[i]
		*w = ibv.RecvWR{WRID: uint64(10*step + i), SGList: ibv.PtrTo(&c.sges[i][0])}
		if i+1 < n {
			w.Next = ibv.PtrTo(&c.recvs[i+1])
		}
		w.NumSGE = int32(c.pieces(&c.sges[i], 500))
	}
	c.code(step, "receives", c.postRecv(&c.recvs[0]))
}

func (c *caller) send(step, n int) {
	opcodes := []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM,
		ibv.WR_RDMA_READ}
	if !c.rc {
		opcodes = opcodes[:2]
	}
	for i := range n {
		w := &c.sends[i]
		*w = ibv.SendWR{WRID: uint64(10*step + i), SGList: ibv.PtrTo(&c.sges[i][0])}
		if i+1 < n {
			w.Next = ibv.PtrTo(&c.sends[i+1])
		}
		w.Opcode = opcodes[c.below(uint32(len(opcodes)))]
		*w.ImmData() = ibv.ToBE32(c.below(1 << 16))
		if c.below(8) != 0 {
			w.SendFlags = ibv.SEND_SIGNALED
		}
		most := uint32(500)
		if w.Opcode != ibv.WR_RDMA_READ && c.below(3) == 0 {
			w.SendFlags |= ibv.SEND_INLINE
			most = callsInline / callsSGEs
		}
		if c.rc && c.below(4) == 0 {
			w.SendFlags |= ibv.SEND_FENCE | ibv.SEND_SOLICITED
		}
		w.NumSGE = int32(c.pieces(&c.sges[i], most))
		if c.rc {
			*w.WR.RDMA() = ibv.SendRDMA{RemoteAddr: callsAt + uint64(c.below(callsSize)), RKey: c.mr.RKey}
			w.QPType.XRC().RemoteSRQN = c.number
		} else {
			qpn := c.below(1 << 16)
			*w.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(c.ah), RemoteQPN: qpn, RemoteQKey: c.below(1 << 16)}
		}
	}
	var bad ibv.Ptr[ibv.SendWR]
	c.code(step, "sends", verbs.PostSend(c.qp, &c.sends[0], &bad))
}

func (c *caller) calls(step, n int) {
	x, err := verbs.QPToQPEx(c.qp)
	c.check(err)
	c.check(verbs.WRStart(x))
	s := &c.sges[0]
	for i := range n {
		x.WRID, x.WRFlags = uint64(10*step+i), 0
		if c.below(16) != 0 {
			x.WRFlags = ibv.SEND_SIGNALED
		}
		kind := c.below(3)
		switch kind {
		case 0:
			c.check(verbs.WRSend(x))
		case 1:
			c.check(verbs.WRSendImm(x, ibv.ToBE32(c.below(1<<16))))
		default:
			c.check(verbs.WRRDMARead(x, c.mr.RKey, callsAt+uint64(c.below(callsSize))))
		}
		count := c.pieces(s, callsInline)
		switch {
		case kind == 2:
			c.check(verbs.WRSetSGE(x, s[0].LKey, s[0].Addr, s[0].Length))
		case c.below(2) != 0:
			c.check(verbs.WRSetSGEList(x, uint64(count), &s[0]))
		default:
			c.check(verbs.WRSetInlineData(x, uintptr(s[0].Addr), uint64(s[0].Length)))
		}
		qpn := c.below(1 << 16)
		c.check(verbs.WRSetUDAddr(x, c.ah, qpn, c.below(1<<16)))
	}
	c.code(step, "calls", verbs.WRComplete(x))
}

func (c *caller) live(step int) {
	in, out := &c.sges[0][0], &c.sges[1][0]
	*in = ibv.SGE{Addr: callsAt + callsSize/2, Length: 1000, LKey: c.mr.LKey}
	at := c.below(100)
	*out = ibv.SGE{Addr: callsAt + uint64(at), Length: 1 + c.below(400), LKey: c.mr.LKey}
	r, w := &c.recvs[0], &c.sends[0]
	*r = ibv.RecvWR{WRID: uint64(step), SGList: ibv.PtrTo(in), NumSGE: 1}
	*w = ibv.SendWR{WRID: uint64(1000 + step), SGList: ibv.PtrTo(out), NumSGE: 1, SendFlags: ibv.SEND_SIGNALED,
		Opcode: ibv.WR_SEND_WITH_IMM}
	if c.below(2) != 0 {
		w.Opcode = ibv.WR_SEND
	}
	*w.ImmData() = ibv.ToBE32(c.below(1 << 16))
	if !c.rc {
		*w.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(c.ah), RemoteQPN: c.qp.QPNum, RemoteQKey: callsKey}
	}
	w.QPType.XRC().RemoteSRQN = c.number
	var badSend ibv.Ptr[ibv.SendWR]
	c.check(c.postRecv(r))
	c.check(verbs.PostSend(c.qp, w, &badSend))
	for n := 0; n < 2; {
		var wc ibv.WC
		got, err := verbs.PollCQ(c.cq, 1, &wc)
		c.check(err)
		if n += got; got > 0 {
			fmt.Fprintf(c.out, "%d %d %d %d %d %x %d %d %x\n", wc.WRID, uint32(wc.Status), uint32(wc.Opcode),
				wc.VendorErr, wc.ByteLen, wc.ImmData().Host(), wc.QPNum, wc.SrcQP, uint32(wc.WCFlags))
		}
	}
}

func (c *caller) close() {
	c.check(verbs.DestroyQP(c.qp))
	if c.target != nil {
		c.check(verbs.DestroyQP(c.target))
		c.check(verbs.DestroySRQ(c.srq))
		c.check(verbs.CloseXRCD(c.xrcd))
	}
	if c.ah != nil {
		c.check(verbs.DestroyAH(c.ah))
	}
	c.check(verbs.DestroyCQ(c.cq))
	c.check(verbs.DeregMR(c.mr))
	c.check(verbs.DeallocPD(c.pd))
	c.check(verbs.CloseDevice(c.context))
}
