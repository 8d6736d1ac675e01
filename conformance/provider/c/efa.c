// SPDX-License-Identifier: BSD-2-Clause

// The driver of an EFA adapter: driver-specific command data.
#include <stdlib.h>
#include <string.h>

#include <rdma/efa-abi.h>

#include "efa.h"

enum {
	LINK_UP = 5, X4 = 2, EDR = 32, MTU = 8192, MOST_SENDS = 4096, SEND_SIZE = 64, MOST_RECEIVES = 1 << 15,
	MOST_CQE = 1 << 14,
};

// Constants that some installed headers lack.
enum { WITH_SGID = 2, WITH_LONG_NUMBERS = 4, WITH_UNSOLICITED = 1, QP_LONG_NUMBERS = 2 };
enum {
	CAN_READ = 1 << 0, CAN_RETRY = 1 << 1, CAN_NOTIFY = 1 << 2, CAN_SGID = 1 << 3, CAN_ORDER_128 = 1 << 4,
	CAN_WRITE = 1 << 5, CAN_UNSOLICITED = 1 << 6,
};

struct create_qp {
	uint32_t comp_mask, rq_ring_size, sq_ring_size, driver_qp_type;
	uint16_t flags;
	uint8_t sl, reserved[5];
};

static const struct ib_uverbs_query_device_resp device = {
	.max_mr_size = 1ull << 40, .page_size_cap = ~4095ull, .vendor_id = 0x1d0f, .vendor_part_id = 0xefa2, .fw_ver = 0x807060504030201,
	.max_qp = 1 << 14, .max_qp_wr = MOST_SENDS, .max_sge = 2, .max_sge_rd = 1, .max_cq = 1 << 14, .max_cqe = MOST_CQE,
	.max_mr = 1 << 15, .max_pd = 1 << 14, .max_ah = 1 << 15, .max_pkeys = 1, .phys_port_cnt = 1,
};

static const struct ib_uverbs_query_port_resp port = {
	.max_msg_sz = MTU, .gid_tbl_len = 1, .pkey_tbl_len = 1, .state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096,
	.active_mtu = IBV_MTU_4096, .max_vl_num = 1, .lmc = 1, .active_width = X4, .active_speed = EDR,
	.phys_state = LINK_UP, .link_layer = IBV_LINK_LAYER_UNSPECIFIED,
};

static const struct gid gids[] = {
	{{0xfe, 0x80, [8] = 0x02, 0x67, 0x6f, 0xff, 0xfe, 0x76, 0x65, 0x72}, IB_UVERBS_GID_TYPE_IB},
};

// sub_queues returns the number of rings in a completion queue: sends complete in the first, receives in the last.
static int sub_queues(void) { return getenv("GOVERBS_EFA_SUB_QUEUES") ? 2 : 1; }

static int get_context(struct call *c)
{
	enum { EXTENDED_INLINE = 80, INLINE = 32 };
	struct efa_ibv_alloc_ucontext_resp r = {
		.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
		.sub_cqs_per_cq = sub_queues(), .inline_buf_size = INLINE, .max_llq_size = MOST_SENDS * SEND_SIZE, .max_tx_batch = 16,
	};
	memcpy((uint8_t *)&r + 20, &(uint16_t){EXTENDED_INLINE}, 2); // missing in 6.1's headers
	return answer_driver(c, &r, sizeof r);
}

static int query_device(struct call *c)
{
	struct efa_ibv_ex_query_device_resp r = {
		.max_sq_wr = MOST_SENDS, .max_rq_wr = MOST_RECEIVES, .max_sq_sge = 2, .max_rq_sge = 4,
		.max_rdma_size = 1 << 30,
		.device_caps = CAN_READ | CAN_RETRY | CAN_NOTIFY | CAN_SGID | CAN_ORDER_128 | CAN_WRITE | CAN_UNSOLICITED,
	};
	const char *more = getenv("GOVERBS_EFA_CAPABILITIES"); // of some adapters
	if (more)
		r.device_caps |= strtoul(more, NULL, 0);
	return answer_driver(c, &r, sizeof r);
}

static int alloc_pd(struct call *c, struct pd *pd)
{
	struct efa_ibv_alloc_pd_resp r = {.pdn = pd->o.handle};
	return answer_driver(c, &r, sizeof r);
}

// Address handles

static bool leads_here(const struct ah *ah) { return memcmp(ah->to, gids[0].raw, sizeof ah->to) == 0; }

static int create_ah(struct call *c, struct ah *ah)
{
	struct efa_ibv_create_ah_resp r = {.efa_address_handle = ah->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static struct pd *searched;
static uint32_t found;

static void look_for_address(void *o)
{
	struct ah *ah = o;
	if (found == UNKNOWN_ADDRESS && ah->pd == searched && leads_here(ah))
		found = ah->o.handle;
}

uint32_t efa_address_of(struct pd *pd)
{
	searched = pd, found = UNKNOWN_ADDRESS;
	each(AH, look_for_address);
	return found;
}

bool efa_address_is_local(struct qp *qp, uint32_t address, bool *here)
{
	struct object *o = object_of(address);
	if (!o || o->kind != AH || ((struct ah *)o)->pd != qp->pd)
		return false;
	*here = leads_here((struct ah *)o);
	return true;
}

static bool knows(struct pd *pd) { return efa_address_of(pd) != UNKNOWN_ADDRESS; }

// Queues

static bool power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

static int create_cq(struct call *c, struct cq *cq)
{
	struct efa_ibv_create_cq q;
	take_driver(c, &q, sizeof q);
	enum { KNOWN = EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL | WITH_SGID | WITH_LONG_NUMBERS };
	if (q.comp_mask || q.num_sub_cqs != sub_queues() || q.flags & ~KNOWN)
		return refuse("flags of a completion queue", q.flags);
	if (q.cq_entry_size != 16 && q.cq_entry_size != 32 || cq->entries > MOST_CQE)
		return EINVAL;
	while (!power_of_two(cq->entries))
		cq->entries += cq->entries & -cq->entries;
	cq->entry_size = q.cq_entry_size, cq->parts = sub_queues();
	cq->told = cq->guessed = 3; // request numbers start at 0
	if (!make_mapping(c->file, &cq->ring, cq->parts * cq->entries * cq->entry_size) || !make_mapping(c->file, &cq->bell, 8))
		return ENOMEM;
	cq->buffer = cq->ring.at;
	struct efa_ibv_create_cq_resp r = {
		.comp_mask = EFA_CREATE_CQ_RESP_DB_OFF, .q_mmap_key = cq->ring.offset, .q_mmap_size = cq->ring.size,
		.cq_idx = cq->o.handle, .db_off = EFA_CQ_BELL * 4, .db_mmap_key = cq->bell.offset,
	};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct create_qp q;
	take_driver(c, &q, sizeof q);
	if (q.comp_mask || q.driver_qp_type != EFA_QP_DRIVER_TYPE_SRD || q.flags & ~(WITH_UNSOLICITED | QP_LONG_NUMBERS))
		return refuse("flags of a queue pair", q.flags);
	uint32_t sends = qp->attr.max_send_wr;
	if (!power_of_two(sends) || q.sq_ring_size != sends * SEND_SIZE && q.sq_ring_size != 2 * sends * SEND_SIZE ||
		q.sq_ring_size > MOST_SENDS * SEND_SIZE || !power_of_two(q.rq_ring_size) ||
		q.rq_ring_size > MOST_RECEIVES * RECEIVE_SIZE)
		return EINVAL;
	qp->sq_blocks = sends, qp->entry_size = q.sq_ring_size / sends;
	qp->rq_wqes = q.rq_ring_size / RECEIVE_SIZE;
	qp->unsolicited = q.flags & WITH_UNSOLICITED;
	if (!make_mapping(c->file, &qp->sends, q.sq_ring_size) || !make_mapping(c->file, &qp->bells, 8) ||
		!make_mapping(c->file, &qp->receives, q.rq_ring_size))
		return ENOMEM;
	qp->sq = qp->sends.at, qp->rq = qp->receives.at;
	struct efa_ibv_create_qp_resp r = {
		.rq_db_offset = 4, .rq_mmap_key = qp->receives.offset, .rq_mmap_size = qp->receives.size,
		.rq_db_mmap_key = qp->bells.offset, .sq_db_mmap_key = qp->bells.offset, .llq_desc_mmap_key = qp->sends.offset,
		.recv_sub_cq_idx = sub_queues() - 1,
	};
	return answer_driver(c, &r, sizeof r);
}

static void record_queues(const struct qp *qp)
{
	record_words("sends", qp->sq, qp->sends.size);
	record_words("receives", qp->rq, qp->receives.size);
	record_words("doorbells", qp->bells.at, 8);
}

static void release(struct object *o)
{
	if (o->kind == CQ) {
		drop_mapping(&((struct cq *)o)->ring);
		drop_mapping(&((struct cq *)o)->bell);
	}
	if (o->kind == QP) {
		struct qp *qp = (struct qp *)o;
		drop_mapping(&qp->receives);
		drop_mapping(&qp->sends);
		drop_mapping(&qp->bells);
	}
}

// Unsupported commands

static int no_srq(struct call *c, struct srq *srq) { return (void)c, (void)srq, EOPNOTSUPP; }

static int no_resize(struct call *c, struct cq *cq, uint32_t entries)
{
	return (void)c, (void)cq, (void)entries, EOPNOTSUPP;
}

// query_mr returns the interconnects that reach a region: number 1.
static int query_mr(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	enum { HANDLE = 1 << UVERBS_ID_NS_SHIFT, VALID, RECEIVES, READS, WRITES };
	struct ib_uverbs_attr *handle = attribute(h, HANDLE);
	if (!handle || !find_object(f, MR, handle->data))
		return ENOENT;
	uint16_t all = 7, one = 1;
	for (uint16_t id = RECEIVES; id <= WRITES; id++)
		give(h, id, &one, sizeof one);
	return give(h, VALID, &all, sizeof all) ? 0 : EINVAL;
}

static int efa_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	enum { QUERY = 1 << UVERBS_ID_NS_SHIFT };
	return h->object_id == UVERBS_OBJECT_MR && h->method_id == QUERY ? query_mr(f, h) : EPROTONOSUPPORT;
}

const struct driver efa = {
	.name = "efa", .device = &device, .port = &port, .gids = gids, .gid_count = 1, .most_numbers = 0x3fff,
	.datagram = MTU, .scalable = true, .get_context = get_context, .query_device = query_device, .alloc_pd = alloc_pd,
	.create_ah = create_ah, .create_cq = create_cq, .resize_cq = no_resize, .create_srq = no_srq,
	.create_qp = create_qp, .reset_qp = efa_reset_qp, .record_qp = record_queues, .ioctl = efa_ioctl, .release = release, .knows = knows,
	.rung = efa_rung, .next_send = efa_next_send, .next_receive = efa_next_receive,
	.consume_receive = efa_consume_receive, .complete = efa_complete, .take_request = efa_take_request,
};
