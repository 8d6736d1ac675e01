// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// transportDC is the transport of dynamic connections. A token then describes a DC target.
const transportDC = 0

// dynamicKey is the access key of DC targets. It is cuObject's.
const dynamicKey = 0xffeeddcc

// dynamicWidths contains the number of hex digits of each field in cuObject's token: address, size, key, LID, number of
// the target, whether a GID follows, and the GID. Two optional fields follow: the transfer's address, or its offset in
// the region, and its size.
var dynamicWidths = []int{16, 8, 8, 4, 6, 1, 32, 16, 16}

// dynamicText returns the token in cuObject's format.
func (t token) dynamicText() string {
	return fmt.Sprintf("%016x:%08x:%08x:%04x:%06x:1:%x:%016x:%016x", t.address, t.length, t.rkey, t.lid, t.qpn,
		t.gid.Raw()[:], t.address, t.length)
}

// parseDynamic parses a token in cuObject's format. The result's address and length are those of the transfer.
func parseDynamic(s string) (t token, err error) {
	fields := strings.Split(s, ":")
	if n := len(fields); n != 7 && n != len(dynamicWidths) {
		return t, errToken
	}
	var v [9]uint64
	for i, field := range fields {
		if len(field) != dynamicWidths[i] || strings.Trim(field, "0123456789abcdefABCDEF") != "" {
			return t, errToken
		}
		if i == 6 {
			hex.Decode(t.gid.Raw()[:], []byte(field))
		} else if v[i], err = strconv.ParseUint(field, 16, 64); err != nil {
			return t, errToken
		}
	}
	t.transport, t.port = transportDC, 1
	t.address, t.length, t.rkey, t.lid, t.qpn = v[0], v[1], uint32(v[2]), uint16(v[3]), uint32(v[4])
	if len(fields) == len(dynamicWidths) {
		skip := v[7] // an offset if it is below the region's address, or else an address
		if skip >= t.address {
			skip -= t.address
		}
		if skip > t.length || v[8] > t.length-skip {
			return t, errToken
		}
		t.address, t.length = t.address+skip, v[8]
	}
	if v[5] != 1 || t.gid == (ibv.GID{}) || t.qpn == 0 || t.length == 0 || t.address+t.length-1 < t.address {
		return t, errToken
	}
	return t, nil
}

// dynamic is additional state of a link whose queue pair is a DC initiator or target.
type dynamic struct {
	gid ibv.GIDEntry // local GID
	srq *rdma.SRQ    // for a target

	// An initiator's handle for the peer of its transfer, and its request.
	ah      *rdma.AH
	program *rdma.WRProgram
}

// newDynamic creates a DC target or initiator.
func (e *engine) newDynamic(target bool) (l *link, err error) {
	l = &link{engine: e, dynamic: &dynamic{}}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	port, active, err := e.device.ActivePort()
	if err != nil {
		return nil, err
	}
	if l.dynamic.gid, err = e.device.FindGID(rdma.GIDQuery{Port: port}); err != nil {
		return nil, err
	}
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(), PD: e.pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC}
	if target {
		if l.dynamic.srq, err = e.pd.CreateSRQ(ibv.SRQAttr{MaxWR: 1, MaxSGE: 1}, rdma.QueueOptions{}); err != nil {
			return nil, err
		}
		attr.SRQ = l.dynamic.srq.Ptr()
		dv.DCInitAttr.DCType, *dv.DCInitAttr.DCTAccessKey() = mlx5dv.DCTYPE_DCT, dynamicKey
	} else {
		attr.Cap = ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}
		attr.CompMask |= ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
		attr.SendOpsFlags = ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_RDMA_WRITE
		dv.DCInitAttr.DCType = mlx5dv.DCTYPE_DCI
	}
	if l.qp, err = mlx5.CreateQP(e.device, attr, dv, rdma.QueueOptions{}); err != nil {
		return nil, err
	}
	return l, l.startDynamic(target, port, active.ActiveMTU)
}

// startDynamic moves a target to RTR, or an initiator to RTS.
func (l *link) startDynamic(target bool, port uint8, mtu ibv.MTU) error {
	step := func(attr ibv.QPAttr, mask ibv.QPAttrMask) error { return l.qp.Modify(&attr, mask|ibv.QP_STATE) }
	init := ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: port}
	mask := ibv.QP_PKEY_INDEX | ibv.QP_PORT
	rtr := ibv.QPAttr{QPState: ibv.QPS_RTR, PathMTU: mtu, MinRNRTimer: 12}
	if target {
		init.QPAccessFlags = ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_WRITE
		rtr.AHAttr = ibv.AHAttr{IsGlobal: 1, PortNum: port}
		rtr.AHAttr.GRH.SGIDIndex, rtr.AHAttr.GRH.HopLimit = uint8(l.dynamic.gid.GIDIndex), 64
		if err := step(init, mask|ibv.QP_ACCESS_FLAGS); err != nil {
			return err
		}
		return step(rtr, ibv.QP_MIN_RNR_TIMER|ibv.QP_AV|ibv.QP_PATH_MTU)
	}
	if err := step(init, mask); err != nil {
		return err
	}
	if err := step(rtr, ibv.QP_PATH_MTU); err != nil {
		return err
	}
	return step(ibv.QPAttr{QPState: ibv.QPS_RTS, Timeout: 16, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1},
		ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC|ibv.QP_SQ_PSN)
}

// postTo posts a read or write of a part of the memory from or to the peer's memory.
func (l *link) postTo(peer token, op ibv.WROpcode, sge ibv.SGE) (err error) {
	d := l.dynamic
	if d.ah == nil {
		attr := &ibv.AHAttr{IsGlobal: 1, PortNum: uint8(d.gid.PortNum), DLID: peer.lid}
		attr.GRH.DGID, attr.GRH.SGIDIndex, attr.GRH.HopLimit = peer.gid, uint8(d.gid.GIDIndex), 64
		if d.ah, err = l.engine.pd.CreateAH(attr); err != nil {
			return err
		}
	}
	if d.program == nil {
		if d.program, err = l.qp.NewWRProgram(); err != nil {
			return err
		}
	}
	p := d.program
	p.Reset()
	if l.send, err = l.engine.calls.Begin(); err != nil {
		return err
	}
	var r rdma.WRRequest
	if op == ibv.WR_RDMA_READ {
		r = p.Read(l.send.ID(), peer.address, peer.rkey)
	} else {
		r = p.Write(l.send.ID(), peer.address, peer.rkey)
	}
	mlx5.DC(r.Signaled().Add(sge), d.ah.Ptr(), peer.qpn, dynamicKey)
	if err = l.qp.PostProgram(p); err != nil {
		l.send.Cancel()
	}
	return err
}

// closePath closes the address handle of an initiator's completed transfer.
func (d *dynamic) closePath() error {
	if d == nil || d.ah == nil {
		return nil
	}
	err := d.ah.Close()
	d.ah = nil
	return err
}

// close closes the target's shared receive queue, if any.
func (d *dynamic) close() error {
	if d != nil && d.srq != nil {
		if err := d.srq.Close(); err != nil {
			return err
		}
	}
	return d.closePath()
}
