// SPDX-License-Identifier: BSD-2-Clause

package refusal

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// QP is a queue pair that could not be modified.
type QP struct {
	Device
	C    *ibv.QP
	Kind ibv.QPType
}

// Modify returns the likely reason for the failure of a transition that the state table allows, or "".
func (q QP) Modify(from, to ibv.QPState, attr *ibv.QPAttr, mask ibv.QPAttrMask) string {
	now, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	if libibverbs.QueryQP(q.C, now, ibv.QP_STATE, init) == nil && now.QPState != from {
		if mask&ibv.QP_CUR_STATE != 0 {
			return fmt.Sprintf("the queue pair is in %s, not in cur_qp_state %s", ShortState(now.QPState),
				ShortState(from))
		}
		return fmt.Sprintf("the queue pair is in %s, not in %s: an error moved it there",
			ShortState(now.QPState), ShortState(from))
	}
	if mask&ibv.QP_STATE != 0 && to > ibv.QPS_ERR {
		return fmt.Sprintf("unknown state %d (qp_state)", to)
	}
	if reason := q.attrReason(attr, mask); reason != "" {
		return reason
	}
	for _, path := range []struct {
		flag ibv.QPAttrMask
		name string
		attr *ibv.AHAttr
	}{{ibv.QP_AV, "", &attr.AHAttr}, {ibv.QP_ALT_PATH, "alternate path: ", &attr.AltAHAttr}} {
		if mask&path.flag != 0 {
			if reason := q.Path(path.attr); reason != "" {
				return path.name + reason
			}
		}
	}
	return q.mtuReason(attr, mask)
}

// mtuReason returns text if a path's MTU exceeds the port's, or "".
func (d Device) mtuReason(attr *ibv.QPAttr, mask ibv.QPAttrMask) string {
	const both = ibv.QP_PATH_MTU | ibv.QP_AV
	port := new(ibv.PortAttr)
	if mask&both != both || libibverbs.QueryPort(d.C, attr.AHAttr.PortNum, port) != nil ||
		attr.PathMTU <= port.ActiveMTU {
		return ""
	}
	return fmt.Sprintf("path_mtu is %d bytes, but the port's active_mtu is %d", MTUBytes(attr.PathMTU),
		MTUBytes(port.ActiveMTU))
}

// attrReason returns text about an attribute in mask that is invalid or unsupported, or "".
func (q QP) attrReason(attr *ibv.QPAttr, mask ibv.QPAttrMask) string {
	device, port := new(ibv.DeviceAttr), new(ibv.PortAttr)
	if libibverbs.QueryDevice(q.Device.C, device) != nil {
		return ""
	}
	if mask&ibv.QP_PATH_MTU != 0 && MTUBytes(attr.PathMTU) == 0 {
		return fmt.Sprintf("path_mtu is %d; it must be from %v (%d) to %v (%d)", attr.PathMTU, ibv.MTU_256, ibv.MTU_256,
			ibv.MTU_4096, ibv.MTU_4096)
	}
	ports := int64(device.PhysPortCnt)
	keys := func(number uint8) int64 { // length of the port's table, if known
		if libibverbs.QueryPort(q.Device.C, number, port) != nil {
			return math.MaxUint16
		}
		return int64(port.PKeyTblLen) - 1
	}
	const number = 1<<24 - 1 // maximum number of a queue pair or packet
	for _, limit := range []struct {
		flag               ibv.QPAttrMask
		member             string
		value, least, most int64
	}{
		{ibv.QP_PORT, "port_num", int64(attr.PortNum), 1, ports},
		{ibv.QP_PKEY_INDEX, "pkey_index", int64(attr.PKeyIndex), 0, keys(attr.PortNum)},
		{ibv.QP_DEST_QPN, "dest_qp_num", int64(attr.DestQPNum), 0, number},
		{ibv.QP_RQ_PSN, "rq_psn", int64(attr.RQPSN), 0, number},
		{ibv.QP_SQ_PSN, "sq_psn", int64(attr.SQPSN), 0, number},
		{ibv.QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", int64(attr.MaxRdAtomic), 0, int64(device.MaxQPInitRdAtom)},
		{ibv.QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", int64(attr.MaxDestRdAtomic), 0, int64(device.MaxQPRdAtom)},
		{ibv.QP_MIN_RNR_TIMER, "min_rnr_timer", int64(attr.MinRNRTimer), 0, 31},
		{ibv.QP_TIMEOUT, "timeout", int64(attr.Timeout), 0, 31},
		{ibv.QP_RETRY_CNT, "retry_cnt", int64(attr.RetryCnt), 0, 7},
		{ibv.QP_RNR_RETRY, "rnr_retry", int64(attr.RNRRetry), 0, 7},
		{ibv.QP_ALT_PATH, "alt_port_num", int64(attr.AltPortNum), 1, ports},
		{ibv.QP_ALT_PATH, "alt_pkey_index", int64(attr.AltPKeyIndex), 0, keys(attr.AltPortNum)},
		{ibv.QP_ALT_PATH, "alt_timeout", int64(attr.AltTimeout), 0, 31},
	} {
		if mask&limit.flag != 0 && (limit.value < limit.least || limit.value > limit.most) {
			return fmt.Sprintf("%s is %d; it must be from %d to %d", limit.member, limit.value, limit.least, limit.most)
		}
	}
	if use := ibv.AccessOfQP(q.Kind); mask&ibv.QP_ACCESS_FLAGS != 0 && !Refused(use.Validity) {
		if reason := Access(use.Use, attr.QPAccessFlags); reason != "" {
			return reason
		}
		return doubtfulAccess(use.Use, attr.QPAccessFlags)
	}
	return ""
}

// Path returns text about the invalid part of a path, or "".
func (d Device) Path(path *ibv.AHAttr) string {
	port := new(ibv.PortAttr)
	if libibverbs.QueryPort(d.C, path.PortNum, port) != nil {
		return fmt.Sprintf("the path uses port %d, which the device does not have", path.PortNum)
	}
	if path.SL > 15 {
		return fmt.Sprintf("sl is %d; it must be from 0 to 15", path.SL)
	}
	if path.IsGlobal == 0 {
		if port.LinkLayer == ibv.LINK_LAYER_ETHERNET {
			return "a path on Ethernet must be global: set is_global and grh.dgid"
		}
		return ""
	}
	if path.GRH.FlowLabel>>20 != 0 {
		return fmt.Sprintf("grh.flow_label is %#x, which exceeds 20 bits", path.GRH.FlowLabel)
	}
	if path.GRH.DGID == (ibv.GID{}) {
		return "the destination is the zero GID (grh.dgid)"
	}
	e := new(ibv.GIDEntry)
	if libibverbs.QueryGIDEx(d.C, uint32(path.PortNum), uint32(path.GRH.SGIDIndex), e, 0) != nil {
		return fmt.Sprintf("the port's GID table has no entry %d (sgid_index)", path.GRH.SGIDIndex)
	}
	return ""
}

// Unreached returns text about an unreachable destination, if the error can mean that and the path is otherwise valid.
func (d Device) Unreached(path *ibv.AHAttr, err error) string {
	source := new(ibv.GIDEntry)
	switch {
	case path.IsGlobal == 0,
		!errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENETUNREACH) &&
			!errors.Is(err, syscall.EHOSTUNREACH),
		libibverbs.QueryGIDEx(d.C, uint32(path.PortNum), uint32(path.GRH.SGIDIndex), source, 0) != nil:
		return ""
	}
	return fmt.Sprintf("the GID %s (grh.dgid) may not exist, or may not be reachable from the GID %s",
		path.GRH.DGID, source.GID)
}

// MTUBytes converts an MTU of the headers to bytes. It returns 0 if it is unknown.
func MTUBytes(mtu ibv.MTU) int {
	if mtu < ibv.MTU_256 || mtu > ibv.MTU_4096 {
		return 0
	}
	return 128 << mtu
}
