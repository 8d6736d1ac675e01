// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

const sgeSize = unsafe.Sizeof(ibv.SGE{})

// short returns the name of a value without its prefix.
func short(v fmt.Stringer, prefix string) string { return strings.TrimPrefix(v.String(), prefix) }

// pointer writes the address of an object, which identifies it in other lines.
func (l *line) pointer(name string, p any) {
	switch p := p.(type) {
	case *ibv.CQ:
		l.address(name, uint64(uintptr(unsafe.Pointer(p))))
	case uintptr:
		l.address(name, uint64(p))
	case uint64:
		l.address(name, p)
	}
}

// decoder writes the arguments before a call, and the created object after it.
type decoder struct {
	before func(l *line, a []uint64)
	after  func(l *line, a []uint64, result uint64)
}

// decoders contains the functions whose arguments are useful to readers. For others, only the name is written.
var decoders = map[string]decoder{
	"ibv_open_device": {before: func(l *line, a []uint64) {
		l.text("device", text(at[ibv.Device](a[0]).Name[:]))
	}, after: func(l *line, a []uint64, result uint64) { l.pointer("context", result) }},
	"ibv_close_device": {before: named("context")},
	"ibv_alloc_pd":     {before: named("context"), after: made("pd")},
	"ibv_dealloc_pd":   {before: named("pd")},
	"ibv_create_cq": {before: func(l *line, a []uint64) {
		l.pointer("context", a[0])
		l.number("depth",
			uint64(a[1]))
	}, after: made("cq")},
	"ibv_create_cq_ex":  {before: named("context"), after: made("cq")},
	"ibv_destroy_cq":    {before: named("cq")},
	"ibv_create_srq":    {before: named("pd"), after: madeSRQ},
	"ibv_create_srq_ex": {before: named("context"), after: madeSRQ},
	"ibv_destroy_srq":   {before: func(l *line, a []uint64) { l.number("srq", uint64(at[ibv.SRQ](a[0]).Handle)) }},
	"ibv_reg_mr":        {before: func(l *line, a []uint64) { l.region(a[0], a[1], a[2], a[3]) }, after: madeMR},
	"ibv_reg_mr_iova":   {before: func(l *line, a []uint64) { l.region(a[0], a[3], a[2], a[4]) }, after: madeMR},
	"ibv_reg_mr_iova2":  {before: func(l *line, a []uint64) { l.region(a[0], a[3], a[2], a[4]) }, after: madeMR},
	"ibv_reg_dmabuf_mr": {before: func(l *line, a []uint64) { l.region(a[0], a[3], a[2], a[5]) }, after: madeMR},
	"ibv_dereg_mr": {before: func(l *line, a []uint64) {
		mr := at[ibv.MR](a[0])
		l.text("device", text(mr.Context.Deref().Device.Deref().Name[:]))
		l.number("lkey", uint64(mr.LKey))
		l.number("rkey", uint64(mr.RKey))
	}},
	"ibv_create_qp": {before: func(l *line, a []uint64) {
		l.pointer("pd",
			a[0])
		l.init(at[ibv.QPInitAttr](a[1]))
	}, after: madeQP},
	"ibv_create_qp_ex": {before: func(l *line, a []uint64) {
		attr := at[ibv.QPInitAttrEx](a[1])
		l.pointer("pd", uintptr(attr.PD))
		l.init((*ibv.QPInitAttr)(unsafe.Pointer(attr)))
	}, after: madeQP},
	"rdma_create_qp": {before: func(l *line, a []uint64) {
		l.pointer("cm_id", a[0])
		l.pointer("pd", a[1])
		l.init(at[ibv.QPInitAttr](a[2]))
	}, after: madeByID},
	"rdma_create_qp_ex": {before: func(l *line, a []uint64) {
		attr := at[ibv.QPInitAttrEx](a[1])
		l.pointer("cm_id", a[0])
		l.pointer("pd", uintptr(attr.PD))
		l.init((*ibv.QPInitAttr)(unsafe.Pointer(attr)))
	}, after: madeByID},
	"rdma_destroy_qp": {before: func(l *line, a []uint64) {
		l.pointer("cm_id", a[0])
		if qp := at[rdmacm.CMID](a[0]).QP; qp != 0 {
			l.number("qp", uint64(qp.Deref().QPNum))
		}
	}},
	"ibv_destroy_qp": {before: func(l *line, a []uint64) { l.number("qp", uint64(at[ibv.QP](a[0]).QPNum)) }},
	"ibv_modify_qp": {before: func(l *line, a []uint64) {
		l.number("qp", uint64(at[ibv.QP](a[0]).QPNum))
		l.text("from", short(at[ibv.QP](a[0]).State, "IBV_QPS_"))
		l.attributes(at[ibv.QPAttr](a[1]), ibv.QPAttrMask(a[2]))
	}},
	"ibv_create_ah": {before: func(l *line, a []uint64) {
		l.pointer("pd", a[0])
		l.path(at[ibv.AHAttr](a[1]))
	}, after: made("ah")},
	"ibv_destroy_ah": {before: named("ah")},
	"ibv_get_async_event": {after: func(l *line, a []uint64, result uint64) {
		if int32(result) != 0 {
			return
		}
		e := at[ibv.AsyncEvent](a[1])
		l.text("event", short(e.EventType, "IBV_EVENT_"))
		switch e.EventType {
		case ibv.EVENT_QP_FATAL, ibv.EVENT_QP_REQ_ERR, ibv.EVENT_QP_ACCESS_ERR, ibv.EVENT_QP_LAST_WQE_REACHED,
			ibv.EVENT_SQ_DRAINED, ibv.EVENT_COMM_EST, ibv.EVENT_PATH_MIG, ibv.EVENT_PATH_MIG_ERR:
			l.number("qp", uint64(e.Element.QP().Deref().QPNum))
		}
	}},
	"_ibv_query_gid_table": {after: func(l *line, a []uint64, result uint64) {
		var all []string
		for i := range min(max(int(int64(result)), 0), int(a[2])) {
			e := at[ibv.GIDEntry](a[1] + uint64(i)*uint64(unsafe.Sizeof(ibv.GIDEntry{})))
			all = append(all, e.GID.String())
		}
		l.text("device", text(at[ibv.Context](a[0]).Device.Deref().Name[:]))
		l.text("gids", strings.Join(all, " "))
	}},
}

// decoderOf returns the decoder of a function.
func decoderOf(function string) decoder {
	if d, ok := managed[function]; ok {
		return d
	}
	return decoders[function]
}

// at converts an address to a pointer.
func at[T any](address uint64) *T { return ibv.Ptr[T](uintptr(address)).Deref() }

// text returns the string in a C array.
func text(field []byte) string {
	name, _, _ := strings.Cut(string(field), "\x00")
	return name
}

// named writes the first argument as an object's address.
func named(name string) func(*line, []uint64) {
	return func(l *line, a []uint64) { l.pointer(name, a[0]) }
}

// made writes the address of the created object.
func made(name string) func(*line, []uint64, uint64) {
	return func(l *line, a []uint64, result uint64) { l.pointer(name, result) }
}

func madeSRQ(l *line, a []uint64, result uint64) {
	if result != 0 {
		l.pointer("at", result)
		l.number("srq", uint64(at[ibv.SRQ](result).Handle))
	}
}

func madeMR(l *line, a []uint64, result uint64) {
	if result != 0 {
		l.number("lkey", uint64(at[ibv.MR](result).LKey))
		l.number("rkey", uint64(at[ibv.MR](result).RKey))
	}
}

func madeQP(l *line, a []uint64, result uint64) {
	if result != 0 {
		qp := at[ibv.QP](result)
		l.number("qp", uint64(qp.QPNum))
		l.text("device", text(qp.Context.Deref().Device.Deref().Name[:]))
	}
}

// region writes the requested attributes of a memory region.
func (l *line) region(pd, address, length, access uint64) {
	l.pointer("pd", pd)
	l.text("device", text(at[ibv.PD](pd).Context.Deref().Device.Deref().Name[:]))
	l.pointer("at", address)
	l.number("bytes", uint64(length))
	l.text("access", strings.ReplaceAll(ibv.AccessFlags(access).String(), "IBV_ACCESS_", ""))
}

// init writes the requested attributes of a queue pair.
func (l *line) init(a *ibv.QPInitAttr) {
	l.text("type", short(a.QPType, "IBV_QPT_"))
	l.pointer("send_cq", uintptr(a.SendCQ))
	l.pointer("recv_cq", uintptr(a.RecvCQ))
	if a.SRQ != 0 {
		l.number("srq", uint64(a.SRQ.Deref().Handle))
	}
	l.number("sends", uint64(a.Cap.MaxSendWR))
	l.number("recvs", uint64(a.Cap.MaxRecvWR))
	l.number("inline", uint64(a.Cap.MaxInlineData))
	l.number("signal_all", uint64(a.SQSigAll))
}

// numbers contains the numeric attributes of a queue pair by their C names.
var numbers = []struct {
	mask ibv.QPAttrMask
	name string
	of   func(*ibv.QPAttr) uint64
}{
	{ibv.QP_QKEY, "qkey", func(a *ibv.QPAttr) uint64 { return uint64(a.QKey) }},
	{ibv.QP_RQ_PSN, "rq_psn", func(a *ibv.QPAttr) uint64 { return uint64(a.RQPSN) }},
	{ibv.QP_SQ_PSN, "sq_psn", func(a *ibv.QPAttr) uint64 { return uint64(a.SQPSN) }},
	{ibv.QP_DEST_QPN, "dest_qp_num", func(a *ibv.QPAttr) uint64 { return uint64(a.DestQPNum) }},
	{ibv.QP_PKEY_INDEX, "pkey_index", func(a *ibv.QPAttr) uint64 { return uint64(a.PKeyIndex) }},
	{ibv.QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", func(a *ibv.QPAttr) uint64 { return uint64(a.MaxRdAtomic) }},
	{ibv.QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", func(a *ibv.QPAttr) uint64 { return uint64(a.MaxDestRdAtomic) }},
	{ibv.QP_MIN_RNR_TIMER, "min_rnr_timer", func(a *ibv.QPAttr) uint64 { return uint64(a.MinRNRTimer) }},
	{ibv.QP_TIMEOUT, "timeout", func(a *ibv.QPAttr) uint64 { return uint64(a.Timeout) }},
	{ibv.QP_RETRY_CNT, "retry_cnt", func(a *ibv.QPAttr) uint64 { return uint64(a.RetryCnt) }},
	{ibv.QP_RNR_RETRY, "rnr_retry", func(a *ibv.QPAttr) uint64 { return uint64(a.RNRRetry) }},
	{ibv.QP_PORT, "port_num", func(a *ibv.QPAttr) uint64 { return uint64(a.PortNum) }},
	{ibv.QP_PATH_MTU, "path_mtu", func(a *ibv.QPAttr) uint64 { return 128 << a.PathMTU }},
}

// attributes writes the attributes selected by mask.
func (l *line) attributes(a *ibv.QPAttr, mask ibv.QPAttrMask) {
	if mask&ibv.QP_STATE != 0 {
		l.text("state", short(a.QPState, "IBV_QPS_"))
	}
	for _, n := range numbers {
		if mask&n.mask != 0 {
			l.number(n.name, n.of(a))
		}
	}
	if mask&ibv.QP_ACCESS_FLAGS != 0 {
		l.text("access", strings.ReplaceAll(a.QPAccessFlags.String(), "IBV_ACCESS_", ""))
	}
	if mask&ibv.QP_AV != 0 {
		l.path(&a.AHAttr)
	}
}

// path writes a path.
func (l *line) path(a *ibv.AHAttr) {
	if a.IsGlobal != 0 {
		l.text("dgid", a.GRH.DGID.String())
		l.number("sgid_index", uint64(a.GRH.SGIDIndex))
	} else {
		l.number("dlid", uint64(a.DLID))
	}
}

// counters writes the counters of a context's device, at most once a second. For kernel devices, it reads the driver's
// files.
func (r *Recorder) counters(context *ibv.Context) {
	if context == nil {
		return
	}
	device := text(context.Device.Deref().Name[:])
	r.mu.Lock()
	last, asked := r.asked[device]
	r.asked[device] = time.Now()
	r.mu.Unlock()
	if asked && time.Since(last) < time.Second {
		return
	}
	l := newLine()
	l.number("t", r.since())
	l.text("verb", "counters")
	l.text("device", device)
	l.list("counters")
	for name, value := range countersOf(device, context) {
		if value != 0 {
			l.open()
			l.text("name", name)
			l.number("value", value)
			l.close()
		}
	}
	l.end()
	r.write(l)
}

func countersOf(device string, context *ibv.Context) map[string]uint64 {
	type counter interface {
		HWCounters(context *ibv.Context) map[string]uint64
	}
	if own, ok := runtime.BackendOf(uintptr(unsafe.Pointer(context))).(counter); ok {
		return own.HWCounters(context)
	}
	all := map[string]uint64{}
	files, _ := filepath.Glob(filepath.Join("/sys/class/infiniband", device, "ports/*/hw_counters/*"))
	for _, name := range files {
		if b, err := os.ReadFile(name); err == nil {
			n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			if err == nil && filepath.Base(name) != "lifespan" {
				all[filepath.Base(name)] += n
			}
		}
	}
	return all
}
