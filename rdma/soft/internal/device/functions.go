// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/rate"
	"github.com/goverbs/goverbs/runtime"
)

// function gives the Go function that stands for one of C's, or nil. Libraries are told apart by their names.
func function(library, name string) runtime.Func {
	if of := libraries[library]; of != nil {
		return of()[name]
	}
	return nil
}

// libraries are the functions of each library that take an object. What a device has to do nothing with adds its own.
var libraries = map[string]func() map[string]runtime.Func{}

func init() { Provide("libibverbs", libibverbs) }

// Provide adds the functions of a library that take an object.
func Provide(library string, functions func() map[string]runtime.Func) {
	libraries[library] = sync.OnceValue(func() map[string]runtime.Func {
		all := map[string]runtime.Func{}
		for name, f := range functions() {
			all[name] = readable(f)
		}
		return all
	})
}

// readable lets a function panic, and not end the process, where memory that its caller names is not there: it may have
// the fabric's lock.
func readable(f runtime.Func) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		return f(a)
	}
}

// libibverbs are its exported functions. What is missing, the device does not have.
var libibverbs = func() map[string]runtime.Func {
	return map[string]runtime.Func{
		"ibv_free_device_list": freeDeviceList,
		"ibv_get_device_name":  deviceName,
		"ibv_get_device_index": deviceIndex,
		"ibv_get_device_guid":  deviceGUID,
		"ibv_open_device":      openDevice,
		"ibv_close_device":     closeDevice,
		"ibv_query_device":     number(queryDevice),
		"ibv_query_port":       number(queryPortSymbol),
		"ibv_query_gid":        queryGID,
		"_ibv_query_gid_ex":    number(queryGIDEx),
		"_ibv_query_gid_table": queryGIDTable,
		"ibv_query_pkey":       queryPKey,
		"ibv_get_pkey_index":   pkeyIndex,

		"ibv_get_async_event": getAsyncEvent,
		"ibv_ack_async_event": ackAsyncEvent,

		"ibv_alloc_pd":   allocPD,
		"ibv_dealloc_pd": number(deallocPD),

		"ibv_reg_mr":       regMR,
		"ibv_reg_mr_iova":  regMRIOVA,
		"ibv_reg_mr_iova2": regMRIOVA,
		"ibv_reg_mr_ex":    regMREx,
		"ibv_rereg_mr":     reregMR,
		"ibv_dereg_mr":     number(deregMR),

		"ibv_alloc_buf":            allocBuf,
		"ibv_free_buf":             freeBuf,
		"ibv_reg_buf_mr":           regBufMR,
		"ibv_export_buf_dmabuf_fd": exportBuf,

		"ibv_create_comp_channel":  createChannel,
		"ibv_destroy_comp_channel": number(destroyChannel),
		"ibv_create_cq":            createCQ,
		"ibv_resize_cq":            number(resizeCQ),
		"ibv_destroy_cq":           number(destroyCQ),
		"ibv_get_cq_event":         getCQEvent,
		"ibv_ack_cq_events":        ackCQEvents,

		"ibv_create_srq":  createSRQ,
		"ibv_modify_srq":  number(modifySRQ),
		"ibv_query_srq":   number(querySRQ),
		"ibv_destroy_srq": number(destroySRQ),

		"ibv_create_qp":   createQP,
		"ibv_modify_qp":   number(modifyQP),
		"ibv_query_qp":    number(queryQP),
		"ibv_destroy_qp":  number(destroyQP),
		"ibv_qp_to_qp_ex": toQPEx,
		"ibv_set_ece":     number(setECE),
		"ibv_query_ece":   number(queryECE),
		// Copies are not promised to go upwards.
		"ibv_query_qp_data_in_order": func([]uint64) (uint64, runtime.Errno) { return 0, 0 },

		"ibv_create_ah":               createAH,
		"ibv_init_ah_from_wc":         initAH,
		"ibv_create_ah_from_wc":       createAHFromWC,
		"ibv_destroy_ah":              number(destroyAH),
		"ibv_attach_mcast":            number(attachMcast),
		"ibv_resolve_eth_l2_from_gid": number(resolveEthernet),
		"ibv_detach_mcast":            number(detachMcast),

		"ibv_fork_init":           func([]uint64) (uint64, runtime.Errno) { return 0, 0 },
		"ibv_is_fork_initialized": func([]uint64) (uint64, runtime.Errno) { return uint64(ibv.FORK_UNNEEDED), 0 },
		"ibv_rate_to_mult":        rate.Of(rate.Mult),
		"mult_to_ibv_rate":        rate.To(rate.Mult),
		"ibv_rate_to_mbps":        rate.Of(rate.Mbps),
		"mbps_to_ibv_rate":        rate.To(rate.Mbps),

		"ibv_wc_status_str":  named(func(v int32) string { return ibv.WCStatus(v).String() }),
		"ibv_wr_opcode_str":  named(func(v int32) string { return ibv.WROpcode(v).String() }),
		"ibv_node_type_str":  named(func(v int32) string { return ibv.NodeType(v).String() }),
		"ibv_port_state_str": named(func(v int32) string { return ibv.PortState(v).String() }),
		"ibv_event_type_str": named(func(v int32) string { return ibv.EventType(v).String() }),
	}
}

// number is for functions that return the number of the error.
func number(f func(a []uint64) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return uint64(f(a)), 0 }
}

// texts are strings of C that were asked for: they stay.
var texts struct {
	sync.Mutex
	at map[string]uint64
}

// named is for functions that give the name of a number as C's string.
func named(name func(int32) string) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		s := name(int32(a[0]))
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
			return 0, errnos.ENOMEM
		}
		copy(unsafe.Slice((*byte)(p), len(s)), s)
		texts.at[s] = uint64(uintptr(p))
		return uint64(uintptr(p)), 0
	}
}
