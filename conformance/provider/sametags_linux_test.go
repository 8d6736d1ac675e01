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

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// Constants of testdata/tags.c.
const (
	callsTags, callsOps, callsMost = 4, 8, 3
)

// tagCaller makes the same calls as testdata/tags.c.
type tagCaller struct {
	caller
	cqEx       *ibv.CQEx
	srq        *ibv.SRQ
	ops        []ibv.OpsWR
	list       []ibv.SGE
	handles    [callsTags]uint32
	unexpected uint32
}

func insideTagCalls(t *testing.T, out io.Writer, seed uint32, live bool) {
	c := &tagCaller{caller: caller{t: t, out: out, state: seed}}
	at := c.memory()
	c.ops = unsafe.Slice((*ibv.OpsWR)(unsafe.Add(at, callsSize)), callsMost)
	c.list = unsafe.Slice((*ibv.SGE)(unsafe.Add(at, callsSize+1024)), callsMost)
	c.recvs = unsafe.Slice((*ibv.RecvWR)(unsafe.Add(at, callsSize+2048)), 1)
	c.sends = unsafe.Slice((*ibv.SendWR)(unsafe.Add(at, callsSize+3072)), 1)
	var n int32
	list, err := verbs.GetDeviceList(&n)
	c.check(err)
	c.context, err = verbs.OpenDevice(list.Deref())
	c.check(err)
	verbs.FreeDeviceList(list)
	var port ibv.PortAttr
	c.check(verbs.QueryPort(c.context, 1, &port))
	c.pd, err = verbs.AllocPD(c.context)
	c.check(err)
	c.mr, err = verbs.RegMR(c.pd, callsAt, callsSize, ibv.ACCESS_LOCAL_WRITE)
	c.check(err)
	c.makeTags()
	c.readyTags(port.LID)
	if live {
		for i := range callsLive {
			c.liveTag(i)
		}
	} else {
		for i := range callsSteps {
			if c.below(4) != 0 {
				c.change(i)
			} else {
				c.receiveOne(i)
			}
		}
	}
	c.check(verbs.DestroyQP(c.qp))
	c.check(verbs.DestroySRQ(c.srq))
	c.check(verbs.DestroyCQ(verbs.CQExToCQ(c.cqEx)))
	c.check(verbs.DeregMR(c.mr))
	c.check(verbs.DeallocPD(c.pd))
	c.check(verbs.CloseDevice(c.context))
}

func (c *tagCaller) makeTags() {
	var err error
	c.cqEx, err = verbs.CreateCQEx(c.context, &ibv.CQInitAttrEx{CQE: 2 * callsDepth, WCFlags: tagValues})
	c.check(err)
	cq := ibv.PtrTo(verbs.CQExToCQ(c.cqEx))
	c.srq, err = verbs.CreateSRQEx(c.context, &ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: callsDepth, MaxSGE: 1},
		SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(c.pd), CQ: cq, TMCap: ibv.TMCap{MaxNumTags: callsTags, MaxOps: callsOps},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM})
	c.check(err)
	c.qp, err = verbs.CreateQP(c.pd, &ibv.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: ibv.PtrTo(c.srq), QPType: ibv.QPT_RC,
		Cap: ibv.QPCap{MaxSendWR: callsDepth, MaxSendSGE: 1}})
	c.check(err)
}

func (c *tagCaller) readyTags(lid uint16) {
	a := ibv.QPAttr{PortNum: 1, PathMTU: ibv.MTU_1024, DestQPNum: c.qp.QPNum, MaxDestRdAtomic: 1, MaxRdAtomic: 1,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, AHAttr: ibv.AHAttr{DLID: lid, PortNum: 1}}
	for i, mask := range []ibv.QPAttrMask{ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_ACCESS_FLAGS,
		ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN | ibv.QP_MAX_DEST_RD_ATOMIC |
			ibv.QP_MIN_RNR_TIMER,
		ibv.QP_SQ_PSN | ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC} {
		a.QPState = ibv.QPS_INIT + ibv.QPState(i)
		c.check(verbs.ModifyQP(c.qp, &a, ibv.QP_STATE|mask))
	}
}

func (c *tagCaller) piece() ibv.SGE {
	at := c.below(callsSize / 2)
	return ibv.SGE{Addr: callsAt + uint64(at), Length: 1 + c.below(500), LKey: c.mr.LKey}
}

func (c *tagCaller) change(step int) {
	n := int(1 + c.below(callsMost))
	for i := range n {
		w := &c.ops[i]
		*w = ibv.OpsWR{WRID: uint64(10*step + i)}
		if i+1 < n {
			w.Next = ibv.PtrTo(&c.ops[i+1])
		}
		switch c.below(4) {
		case 0:
			w.Opcode = ibv.WR_TAG_SYNC
		case 1:
			w.Opcode = ibv.WR_TAG_DEL
			w.TM.Handle = c.handles[c.below(callsTags)]
		default:
			w.Opcode = ibv.WR_TAG_ADD
			w.TM.Add = ibv.OpsTMAdd{RecvWRID: uint64(c.below(1 << 16)), Tag: uint64(c.below(1 << 16)),
				Mask: uint64(c.below(1 << 16)), SGList: ibv.PtrTo(&c.list[i])}
			if c.below(4) != 0 {
				w.TM.Add.NumSGE = 1
			}
			c.list[i] = c.piece()
		}
		if c.below(3) != 0 {
			w.Flags |= ibv.OPS_SIGNALED
		}
		if c.below(3) == 0 {
			w.Flags |= ibv.OPS_TM_SYNC
			w.TM.UnexpectedCnt = c.below(1 << 16)
		}
	}
	var bad ibv.Ptr[ibv.OpsWR]
	err := verbs.PostSRQOps(c.srq, &c.ops[0], &bad)
	code, at := syscall.Errno(0), -1
	if err != nil {
		require.True(c.t, errors.As(err, &code), "%v", err)
		at = int((uintptr(bad) - uintptr(unsafe.Pointer(&c.ops[0]))) / unsafe.Sizeof(c.ops[0]))
	}
	fmt.Fprintf(c.out, "%d: operations: %d, the bad one is %d\n", step, int(code), at)
	for i := range n {
		if c.ops[i].Opcode == ibv.WR_TAG_ADD {
			c.handles[c.below(callsTags)] = c.ops[i].TM.Handle
		}
	}
}

func (c *tagCaller) receiveOne(step int) {
	c.list[0] = c.piece()
	c.recvs[0] = ibv.RecvWR{WRID: uint64(10 * step), SGList: ibv.PtrTo(&c.list[0]), NumSGE: 1}
	var bad ibv.Ptr[ibv.RecvWR]
	c.code(step, "receive", verbs.PostSRQRecv(c.srq, &c.recvs[0], &bad))
}

func (c *tagCaller) completion() {
	var a ibv.PollCQAttr
	for verbs.StartPoll(c.cqEx, &a) != nil {
		continue
	}
	opcode, err := verbs.WCReadOpcode(c.cqEx)
	c.check(err)
	flags, err := verbs.WCReadWCFlags(c.cqEx)
	c.check(err)
	var tm ibv.WCTMInfo
	if flags&ibv.WC_TM_MATCH != 0 {
		c.check(verbs.WCReadTMInfo(c.cqEx, &tm))
	}
	var length uint32
	if opcode == ibv.WC_TM_RECV {
		if flags&matchedData == 0 {
			c.unexpected++
		}
		length, err = verbs.WCReadByteLen(c.cqEx)
		c.check(err)
	}
	number, err := verbs.WCReadQPNum(c.cqEx)
	c.check(err)
	fmt.Fprintf(c.out, "%d %d %d %x %d %d %x %x\n", c.cqEx.WRID, uint32(c.cqEx.Status), uint32(opcode), uint32(flags),
		length, number, tm.Tag, tm.Priv)
	c.check(verbs.EndPoll(c.cqEx))
}

func (c *tagCaller) operation(w ibv.OpsWR) uint32 {
	c.ops[0] = w
	var bad ibv.Ptr[ibv.OpsWR]
	c.check(verbs.PostSRQOps(c.srq, &c.ops[0], &bad))
	c.completion()
	return c.ops[0].TM.Handle
}

func (c *tagCaller) liveTag(step int) {
	in, out := &c.list[0], &c.list[1]
	*in = ibv.SGE{Addr: callsAt + callsSize/2, Length: 2000, LKey: c.mr.LKey}
	tag := uint64(step)
	kind := c.below(4)
	h := ibv.Ptr[ibv.TMH](callsAt).Deref()
	*h = ibv.TMH{Opcode: ibv.TMH_EAGER, AppCtx: ibv.ToBE32(c.below(1 << 16)), Tag: ibv.ToBE64(tag)}
	switch kind {
	case 0:
		h.Opcode = ibv.TMH_NO_TAG
	case 1:
		h.Tag = ibv.ToBE64(tag + 1)
	}
	*out = ibv.SGE{Addr: callsAt, Length: tagHeader + c.below(1500), LKey: c.mr.LKey}
	handle := c.operation(ibv.OpsWR{WRID: tag, Opcode: ibv.WR_TAG_ADD, Flags: ibv.OPS_SIGNALED | ibv.OPS_TM_SYNC,
		TM: ibv.OpsTM{UnexpectedCnt: c.unexpected, Add: ibv.OpsTMAdd{RecvWRID: 1000 + tag, SGList: ibv.PtrTo(in),
			NumSGE: 1, Tag: tag, Mask: ^uint64(0)}}})
	if kind < 2 {
		c.recvs[0] = ibv.RecvWR{WRID: 2000 + tag, SGList: ibv.PtrTo(in), NumSGE: 1}
		var bad ibv.Ptr[ibv.RecvWR]
		c.check(verbs.PostSRQRecv(c.srq, &c.recvs[0], &bad))
	}
	c.sends[0] = ibv.SendWR{WRID: 3000 + tag, SGList: ibv.PtrTo(out), NumSGE: 1, SendFlags: ibv.SEND_SIGNALED,
		Opcode: ibv.WR_SEND}
	var bad ibv.Ptr[ibv.SendWR]
	c.check(verbs.PostSend(c.qp, &c.sends[0], &bad))
	c.completion()
	c.completion()
	switch {
	case kind < 2:
		c.operation(ibv.OpsWR{WRID: 4000 + tag, Opcode: ibv.WR_TAG_DEL, Flags: ibv.OPS_SIGNALED,
			TM: ibv.OpsTM{Handle: handle}})
	case out.Length > 1024:
		c.completion()
	}
}
