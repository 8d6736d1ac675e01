// SPDX-License-Identifier: BSD-2-Clause

// Shared code of drivers for RoCE adapters, mainly those with idle queues.
#ifndef GOVERBS_IDLE_H
#define GOVERBS_IDLE_H

#include "emulated.h"

// Capabilities, chosen for the tests; they are not those of any real adapter.
#define ROCE_DEVICE \
	.fw_ver = 1ull << 32, .max_mr_size = ~0ull, .page_size_cap = ~4095ull, .max_qp = 1 << 14, \
	.max_qp_wr = MOST_REQUESTS / 4, .max_cq = 1 << 14, .max_mr = 1 << 15, .max_pd = 1 << 14, .max_qp_rd_atom = 16, \
	.max_res_rd_atom = 1 << 18, .max_qp_init_rd_atom = 16, .atomic_cap = IBV_ATOMIC_HCA, .max_ah = 1 << 15, \
	.max_mw = 1 << 15, .max_pkeys = 1, .local_ca_ack_delay = 16, .phys_port_cnt = 1

#define ROCE_SRQ(sges) .max_srq = 1 << 14, .max_srq_wr = (1 << 15) - 1, .max_srq_sge = sges

enum { ROCE_LINK_UP = 5, ROCE_X4 = 2, ROCE_EDR = 32 };

#define ROCE_PORT \
	.max_msg_sz = 1 << 30, .gid_tbl_len = 4, .pkey_tbl_len = 1, .state = IBV_PORT_ACTIVE, \
	.max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .max_vl_num = 1, .active_width = ROCE_X4, \
	.active_speed = ROCE_EDR, .phys_state = ROCE_LINK_UP, .link_layer = IBV_LINK_LAYER_ETHERNET

extern const struct ib_uverbs_query_port_resp roce_port;
extern const struct gid roce_gids[2]; // one Ethernet port, RoCE v1 and v2

uint32_t round_up(uint32_t); // to a power of two
bool power_of_two(uint32_t);
uint8_t *address(uint64_t);
struct mapping memory_of(uint64_t address, size_t); // the program's own memory

bool new_bells(struct file *, uint64_t offset); // a page of doorbells that the program maps at a known offset
void free_bells(struct object *);
bool bells_rung(void); // was such a page written since the last call?

// Commands without driver-specific data, or unsupported.
int plain_query_device(struct call *);
int plain_pd(struct call *, struct pd *);
int plain_ah(struct call *, struct ah *);
int no_srq(struct call *, struct srq *);
int no_resize(struct call *, struct cq *, uint32_t entries);
int no_methods(struct file *, struct ib_uverbs_ioctl_hdr *);
void record_queues(const struct qp *); // sends, receives, bells, and pages of doorbells

#define ROCE(of) \
	.name = #of, .device = &device, .query_device = plain_query_device, .record_qp = record_queues, \
	.ioctl = no_methods, .release = free_bells

#define ROCE_NET .port = &roce_port, .gids = roce_gids, .gid_count = 2

#endif
