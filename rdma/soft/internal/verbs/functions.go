// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/rate"
	"github.com/goverbs/goverbs/runtime"
)

// Function returns the Go implementation of a C function, or nil. Libraries are distinguished by name.
func Function(library, name string) runtime.Func {
	if of := libraries[library]; of != nil {
		return of()[name]
	}
	return nil
}

// libraries has the functions of each library that take an object. Other packages add theirs with Provide.
var libraries = map[string]func() map[string]runtime.Func{}

func init() { Provide("libibverbs", libibverbs, libibverbsWaiting) }

// Provide adds the functions of a library that take an object, and those of them that wait: in Go, but for those of
// library+nap.Outside.
func Provide(library string, functions func() map[string]runtime.Func,
	waiting func() map[string]abi.Waiting) {
	libraries[library] = sync.OnceValue(func() map[string]runtime.Func {
		all := map[string]runtime.Func{}
		for name, f := range functions() {
			all[name] = abi.Guarded(f)
		}
		for name, f := range waiting() {
			all[name] = abi.Guarded(f.InGo)
		}
		return all
	})
	libraries[library+nap.Outside] = sync.OnceValue(func() map[string]runtime.Func {
		all := map[string]runtime.Func{}
		for name, f := range waiting() {
			all[name] = f.Outside
		}
		return all
	})
}

// libibverbsWaiting are the functions of libibverbs that wait for events.
var libibverbsWaiting = func() map[string]abi.Waiting {
	return map[string]abi.Waiting{
		"ibv_get_async_event": abi.Again(abi.Wait2(getAsyncEvent)),
		"ibv_get_cq_event":    abi.Again(abi.Wait3(getCQEvent)),
	}
}

// libibverbs has the exported functions that devices support.
var libibverbs = func() map[string]runtime.Func {
	return map[string]runtime.Func{
		"ibv_free_device_list": abi.Void(abi.Take1(freeDeviceList)),
		"ibv_get_device_name":  makes(abi.New0(deviceName)),
		"ibv_get_device_index": abi.Func1(deviceIndex),
		"ibv_get_device_guid":  abi.Func1(deviceGUID),
		"ibv_open_device":      abi.Func1(OpenDevice),
		"ibv_close_device":     abi.Status(held(abi.After0(closeDevice))),
		"ibv_query_device":     abi.Number(held(abi.AfterRecord(queryDevice))),
		"ibv_query_port":       abi.Number(held(abi.After2(queryPortSymbol))),
		"ibv_query_gid":        abi.Status(held(abi.After3(queryGID))),
		"_ibv_query_gid_ex":    abi.Number(held(abi.After5(queryGIDEx))),
		"_ibv_query_gid_table": abi.Result(abi.Take5(queryGIDTable)),
		"ibv_query_pkey":       abi.Status(found(abi.After3(queryPKey))),
		"ibv_get_pkey_index":   abi.Func3(pkeyIndex),

		"ibv_import_pd":   creates(abi.New1(importPD)),
		"ibv_import_mr":   creates(abi.New1(importMR)),
		"ibv_import_dm":   creates(abi.New1(importDM)),
		"ibv_unimport_pd": abi.Void(abi.Take1(unimport[PD, ibv.PD])),
		"ibv_unimport_mr": abi.Void(abi.Take1(unimport[Region, ibv.MR])),
		"ibv_unimport_dm": abi.Void(abi.Take1(unimport[dm, ibv.DM])),

		"ibv_ack_async_event": abi.Void(abi.Take1(ackAsyncEvent)),

		"ibv_alloc_dmah":       creates(abi.NewRecord(allocDMAH)),
		"ibv_dealloc_dmah":     abi.Number(held(abi.After0(deallocDMAH))),
		"ibv_query_port_speed": abi.Number(held(abi.After2(queryPortSpeed))),

		"ibv_alloc_pd":   creates(abi.New0(allocPD)),
		"ibv_dealloc_pd": abi.Number(held(abi.After0((*PD).Dealloc))),

		"ibv_reg_mr":       makes(abi.New3(regMR)),
		"ibv_reg_mr_iova":  makes(abi.New4(regMRIOVA)),
		"ibv_reg_mr_iova2": makes(abi.New4(regMRIOVA)),
		"ibv_reg_mr_ex":    makes(abi.NewRecord(regMREx)),
		"ibv_rereg_mr":     abi.Func6(reregMR),
		"ibv_dereg_mr":     abi.Number(held(abi.After0(deregMR))),

		"ibv_alloc_buf":            creates(abi.New2(allocBuf)),
		"ibv_free_buf":             abi.Void(abi.Take1(freeBuf)),
		"ibv_reg_buf_mr":           makes(abi.New4(regBufMR)),
		"ibv_export_buf_dmabuf_fd": abi.Func1(exportBuf),
		"ibv_reg_dmabuf_mr":        makes(abi.New5(regDMABufMR)),
		"ibv_dm_export_dmabuf_fd":  abi.Func1(exportDM),

		"ibv_create_comp_channel":  abi.Func1(CreateChannel),
		"ibv_destroy_comp_channel": abi.Number(abi.Take1(DestroyChannel)),
		"ibv_create_cq":            abi.Func5(CreateCQ),
		"ibv_resize_cq":            abi.Number(abi.Take2(resizeCQ)),
		"ibv_destroy_cq":           abi.Number(abi.Take1(DestroyCQ)),
		"ibv_ack_cq_events":        abi.Void(held(abi.After1(ackCQEvents))),

		"ibv_create_srq":  creates(abi.NewRecord(createSRQ)),
		"ibv_modify_srq":  abi.Number(held(abi.After2(modifySRQ))),
		"ibv_query_srq":   abi.Number(held(abi.AfterRecord(querySRQ))),
		"ibv_destroy_srq": abi.Number(abi.Take1(DestroySRQ)),

		"ibv_create_qp":   makes(abi.NewRecord(createQP)),
		"ibv_modify_qp":   abi.Number(abi.Take3(modifyQP)),
		"ibv_query_qp":    abi.Number(abi.Take4(queryQP)),
		"ibv_destroy_qp":  abi.Number(abi.Take1(DestroyQP)),
		"ibv_qp_to_qp_ex": abi.Func1(toQPEx),
		"ibv_set_ece":     abi.Number(abi.Take2(setECE)),
		"ibv_query_ece":   abi.Number(abi.Take2(queryECE)),
		// The order of a copy's bytes is not defined.
		"ibv_query_qp_data_in_order": abi.Constant(int32(0)),

		"ibv_create_ah":               creates(abi.NewRecord(createAH)),
		"ibv_init_ah_from_wc":         abi.Status(held(abi.After4(initAH))),
		"ibv_create_ah_from_wc":       creates(abi.New3(createAHFromWC)),
		"ibv_destroy_ah":              abi.Number(held(abi.After0(destroyAH))),
		"ibv_attach_mcast":            abi.Number(abi.Take2(onGroup((*engine.QP).Attach))),
		"ibv_resolve_eth_l2_from_gid": abi.Number(held(abi.After3(resolveEthernet))),
		"ibv_detach_mcast":            abi.Number(abi.Take2(onGroup((*engine.QP).Detach))),

		"ibv_fork_init":           abi.Constant(int32(0)),
		"ibv_is_fork_initialized": abi.Constant(ibv.FORK_UNNEEDED),
		"ibv_rate_to_mult":        abi.Result(abi.Take1(rate.Of(rate.Mult))),
		"mult_to_ibv_rate":        abi.Result(abi.Take1(rate.To(rate.Mult))),
		"ibv_rate_to_mbps":        abi.Result(abi.Take1(rate.Of(rate.Mbps))),
		"mbps_to_ibv_rate":        abi.Result(abi.Take1(rate.To(rate.Mbps))),

		"ibv_wc_status_str":  Named(func(v int32) string { return ibv.WCStatus(v).String() }),
		"ibv_wr_opcode_str":  Named(func(v int32) string { return ibv.WROpcode(v).String() }),
		"ibv_node_type_str":  Named(func(v int32) string { return ibv.NodeType(v).String() }),
		"ibv_port_state_str": Named(func(v int32) string { return ibv.PortState(v).String() }),
		"ibv_event_type_str": Named(func(v int32) string { return ibv.EventType(v).String() }),
	}
}

// texts are the C strings returned so far, which are never freed.
var texts struct {
	sync.Mutex
	at map[string]uint64
}

// Named wraps functions that return the name of a number as a C string.
func Named(name func(int32) string) runtime.Func {
	return abi.Func1(func(v int32) (uint64, runtime.Errno) {
		s := name(v)
		texts.Lock()
		defer texts.Unlock()
		if address := texts.at[s]; address != 0 {
			return address, 0
		}
		if texts.at == nil {
			texts.at = map[string]uint64{}
		}
		if len(texts.at) > 1<<12 { // of numbers that mean nothing
			return 0, 0
		}
		p, err := all.space.Alloc(len(s) + 1)
		if err != nil {
			return 0, syscall.ENOMEM
		}
		copy(unsafe.Slice((*byte)(p), len(s)), s)
		texts.at[s] = uint64(uintptr(p))
		return uint64(uintptr(p)), 0
	})
}
