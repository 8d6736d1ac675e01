// SPDX-License-Identifier: BSD-2-Clause

package verberr

import (
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// errnoReason returns the known reason for a verb's errno, for use if there is no more specific one.
func errnoReason(verb string, errno runtime.Errno) string {
	for _, r := range errnoReasons {
		if r.errno == errno {
			for v := range strings.FieldsSeq(r.verbs) {
				if v == verb {
					return r.reason
				}
			}
		}
	}
	return ""
}

// Reasons returns all known reasons.
func Reasons() (all []Reason) {
	for _, r := range errnoReasons {
		all = append(all, Reason{strings.Fields(r.verbs), r.errno, r.reason, r.source})
	}
	return all
}

// errnoRow is the reason for an errno of some verbs. It must be true whenever they return it, or list all causes.
type errnoRow struct {
	verbs  string // separated by spaces
	errno  runtime.Errno
	reason string
	source string // in Linux 6.12 or rdma-core 65.0
}

const (
	registers = "ibv_reg_mr ibv_reg_mr_iova ibv_reg_mr_iova2 ibv_reg_mr_ex ibv_reg_buf_mr ibv_rereg_mr"
	compCntrs = "ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr " +
		"ibv_read_err_comp_cntr"
	uverbsCmd  = "drivers/infiniband/core/uverbs_cmd.c"
	coreVerbs  = "drivers/infiniband/core/verbs.c"
	stdTypes   = "drivers/infiniband/core/uverbs_std_types.c"
	umem       = "drivers/infiniband/core/umem.c"
	addrC      = "drivers/infiniband/core/addr.c"
	compCntrOf = "ibv_create_comp_cntr(3)"
)

var errnoReasons = []errnoRow{
	{"ibv_get_device_list", syscall.EPERM, "the process may not list the kernel's devices",
		"ibv_get_device_list(3)"},
	{"ibv_get_device_list", syscall.ENOSYS, "the kernel has no RDMA support: check that the module ib_uverbs is loaded",
		"ibv_get_device_list(3)"},
	{"ibv_open_device", syscall.EACCES,
		"the process may not open the device's file in /dev/infiniband: check its owner, group and mode",
		"util/open_cdev.c"},
	{"ibv_open_device", syscall.EPERM,
		"the process may not open the device's file in /dev/infiniband: a container's device rules may forbid it",
		"util/open_cdev.c"},
	{"ibv_open_device", syscall.ENOENT,
		"the device's file in /dev/infiniband is missing: add it to the container, if any", "util/open_cdev.c"},

	{registers, syscall.ENOMEM,
		"the process may have reached its limit of locked memory (RLIMIT_MEMLOCK, ulimit -l), or the device has no " +
			"room for more regions",
		umem + ", ib_umem_get"},
	{registers, syscall.EFAULT, "a part of the memory is not mapped, or not writable although the access requires it",
		umem + ", ib_umem_get"},
	{"ibv_dereg_mr", syscall.EINVAL, "a memory window may be bound to the region: unbind or close it first",
		"drivers/infiniband/sw/rxe/rxe_mr.c, rxe_dereg_mr"},
	{"ibv_dereg_mr", syscall.EBUSY, "a memory window may be bound to the region: unbind or close it first",
		"rdma/soft; IBA 10.6.7.2.6"},
	{"ibv_reg_mr_ex ibv_reg_buf_mr", syscall.EINVAL,
		"the arguments do not match: see ibv_reg_mr(3) for members of the attributes, and ibv_alloc_buf(3) for " +
			"buffers, which belong to one protection domain",
		"ibv_alloc_buf(3)"},
	{"ibv_advise_mr", syscall.EFAULT,
		"a range is outside its region or the process's memory, or a key is wrong or does not allow " +
			"the advice",
		"ibv_advise_mr(3)"},
	{"ibv_advise_mr", syscall.EPERM,
		"a key belongs to another protection domain, or the advice is to write a read-only region",
		"ibv_advise_mr(3)"},
	{"ibv_advise_mr", syscall.ENOENT, "a key does not belong to the address's region", "ibv_advise_mr(3)"},
	{"ibv_advise_mr", syscall.EOPNOTSUPP, "the device does not support this advice", "ibv_advise_mr(3)"},
	{"ibv_export_buf_dmabuf_fd", syscall.ENODATA, "the buffer is ordinary memory, not a dma-buf", "ibv_alloc_buf(3)"},

	{"ibv_create_cq", syscall.EINVAL, "the device does not accept the number of completions, or the completion vector",
		uverbsCmd + ", create_cq"},
	{"ibv_create_cq_ex", syscall.EINVAL,
		"the device does not accept the number of completions or the completion vector, or does not support " +
			"comp_mask",
		uverbsCmd + ", create_cq; libibverbs/verbs.h, ibv_create_cq_ex"},
	{"ibv_create_cq_ex", syscall.EOPNOTSUPP,
		"the device does not support all of wc_flags, flags or comp_mask",
		"ibv_create_cq_ex(3)"},
	{"ibv_modify_cq", syscall.EOPNOTSUPP, "the device does not moderate events", "libibverbs/verbs.h, ibv_modify_cq"},
	{"ibv_query_qp", syscall.EOPNOTSUPP, "the mask may have attributes that the device does not support",
		"libibverbs/cmd.c, ibv_cmd_query_qp"},
	{"ibv_destroy_comp_channel", syscall.EBUSY, "a completion queue still uses the channel",
		"libibverbs/verbs.c, ibv_destroy_comp_channel"},
	{"ibv_create_qp ibv_create_qp_ex", syscall.EPERM, "a queue pair of type RAW_PACKET requires CAP_NET_RAW",
		uverbsCmd + ", create_qp"},
	{"ibv_destroy_qp", syscall.EBUSY,
		"the queue pair is attached to a multicast group, or a flow rule still uses it",
		stdTypes + ", uverbs_free_qp"},
	{"ibv_dealloc_pd", syscall.EBUSY, "the protection domain still has objects, perhaps created in C",
		stdTypes + ", uverbs_free_pd"},
	{"ibv_destroy_srq", syscall.EBUSY, "a queue pair still uses the shared receive queue",
		coreVerbs + ", ib_destroy_srq_user"},
	{"ibv_modify_qp ibv_create_ah", syscall.ETIMEDOUT,
		"the peer's address was not resolved to an Ethernet address: it may not be reachable from the network " +
			"interface of the local GID",
		addrC + ", process_one_req"},
	{"ibv_modify_qp_rate_limit", syscall.EINVAL,
		"the limits exceed the device's (packet_pacing_caps of Device.QueryEx), or the queue pair is " +
			"not in RTS",
		"ibv_modify_qp_rate_limit(3)"},
	{"ibv_query_pkey ibv_get_pkey_index", syscall.ENOENT,
		"the port's table of partition keys has no such entry (pkey_tbl_len of Device.Port is its length), " +
			"or there is no such port",
		"libibverbs/verbs.c, ibv_query_pkey, which reads a file of that number"},
	{"ibv_query_gid_ex", syscall.EINVAL,
		"the port's GID table has no such entry (gid_tbl_len of Device.Port is its length), or there is no " +
			"such port",
		"drivers/infiniband/core/uverbs_std_types_device.c, UVERBS_METHOD_QUERY_GID_ENTRY"},
	{"ibv_open_xrcd", syscall.EINVAL,
		"comp_mask must have IBV_XRCD_INIT_ATTR_FD and IBV_XRCD_INIT_ATTR_OFLAGS; or oflags has O_EXCL, and the " +
			"file already has a domain",
		"libibverbs/cmd.c, ibv_cmd_open_xrcd; " + uverbsCmd + ", ib_uverbs_open_xrcd"},
	{"ibv_open_xrcd", syscall.EAGAIN, "the file has no domain, and oflags lacks O_CREAT",
		uverbsCmd + ", ib_uverbs_open_xrcd"},
	{"ibv_query_gid_ex", syscall.ENODATA, "the entry of the GID table is empty", "ibv_query_gid_ex(3)"},
	{"ibv_set_ece ibv_query_ece", syscall.EINVAL, "the options do not match the device",
		"ibv_set_ece(3), ibv_query_ece(3)"},
	{"ibv_attach_mcast ibv_detach_mcast", syscall.EINVAL,
		"the GID or the LID is not a multicast address, or the queue pair is not attached to it",
		coreVerbs + ", ib_attach_mcast, ib_detach_mcast"},

	{"ibv_create_flow", syscall.EINVAL,
		"the device does not accept these specs, this priority or this queue pair for a rule", "ibv_create_flow(3)"},
	{"ibv_create_flow", syscall.EPERM, "steering flows requires CAP_NET_RAW",
		"ibv_create_flow(3); " + uverbsCmd + ", ib_uverbs_ex_create_flow"},
	{"ibv_create_flow", syscall.ENXIO, "the device currently does not steer flows", "ibv_create_flow(3)"},
	{"ibv_attach_counters_point_flow", syscall.EOPNOTSUPP, "the device does not count this",
		"ibv_attach_counters_point_flow(3)"},
	{"ibv_attach_counters_point_flow", syscall.EBUSY,
		"the counters are already bound to a rule, and nothing can be added to them until it is closed",
		"ibv_attach_counters_point_flow(3)"},
	{"ibv_create_comp_cntr ibv_query_comp_cntr_caps " + compCntrs, syscall.EOPNOTSUPP,
		"the device has no completion counters, or none for this use", compCntrOf},
	{"ibv_destroy_comp_cntr", syscall.EBUSY, "the counter is still attached to a queue pair", compCntrOf},
	{"ibv_qp_attach_comp_cntr", syscall.EBUSY,
		"another counter already counts one of these operations of the queue pair", "ibv_qp_attach_comp_cntr(3)"},
	{"ibv_qp_attach_comp_cntr", syscall.EOPNOTSUPP,
		"the device does not count these operations (SupportedQPAttachOps of Device.CompCntrCaps)",
		"ibv_qp_attach_comp_cntr(3)"},
}
