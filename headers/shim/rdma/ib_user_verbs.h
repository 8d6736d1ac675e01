/*
 * Our own minimal <rdma/ib_user_verbs.h>: the one structure of the kernel's interface that <infiniband/ib_user_ioctl_verbs.h>
 * embeds. The C witness compares it with the real header.
 */
#ifndef GOVERBS_SHIM_RDMA_IB_USER_VERBS_H
#define GOVERBS_SHIM_RDMA_IB_USER_VERBS_H

#include <linux/types.h>

struct ib_uverbs_query_port_resp {
	__u32 port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, gid_tbl_len;
	__u16 pkey_tbl_len, lid, sm_lid;
	__u8 state, max_mtu, active_mtu, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
	__u8 active_width, active_speed, phys_state, link_layer, flags, reserved;
};

#endif
