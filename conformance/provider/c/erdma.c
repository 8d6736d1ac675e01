// SPDX-License-Identifier: BSD-2-Clause

// The driver of an erdma adapter: what its commands carry beside the usual.
#include <rdma/erdma-abi.h>

#include "idle.h"

enum { SEND_BLOCK = 32, BLOCKS = 4, RECEIVE = 32 }; // BLOCKS is the most of a request

static const struct ib_uverbs_query_device_resp device = {
	ROCE_DEVICE, .vendor_id = 0x1ded, .vendor_part_id = 0x107f, .max_sge = 1, .max_sge_rd = 1, .max_cqe = 1 << 20,
};

static int get_context(struct call *c)
{
	enum { SENDS = PAGE, RECEIVES = 2 * PAGE, COMPLETIONS = 3 * PAGE };
	if (!new_bells(c->file, SENDS) || !new_bells(c->file, RECEIVES) || !new_bells(c->file, COMPLETIONS))
		return ENOMEM;
	struct erdma_uresp_alloc_ctx r = {.sdb = SENDS, .rdb = RECEIVES, .cdb = COMPLETIONS};
	return answer_driver(c, &r, sizeof r);
}

static int create_cq(struct call *c, struct cq *cq)
{
	struct erdma_ureq_create_cq q;
	take_driver(c, &q, sizeof q);
	if (!power_of_two(cq->entries) || !q.qbuf_va || !q.db_record_va)
		return EINVAL;
	struct erdma_uresp_create_cq r = {.cq_id = cq->o.handle, .num_cqe = cq->entries};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct erdma_ureq_create_qp q;
	take_driver(c, &q, sizeof q);
	uint32_t sends = round_up(qp->attr.max_send_wr * BLOCKS), receives = round_up(qp->attr.max_recv_wr);
	uint32_t offset = (sends * SEND_BLOCK + PAGE - 1) & -PAGE;
	if (!q.qbuf_va || !q.db_record_va || q.qbuf_len < offset + receives * RECEIVE)
		return EINVAL;
	qp->sends = memory_of(q.qbuf_va, sends * SEND_BLOCK);
	qp->receives = memory_of(q.qbuf_va + offset, receives * RECEIVE);
	qp->bells = memory_of(q.db_record_va, 16);
	struct erdma_uresp_create_qp r = {
		.qp_id = qp->number, .num_sqe = sends, .num_rqe = receives, .rq_offset = offset,
	};
	return answer_driver(c, &r, sizeof r);
}

const struct driver erdma = {
	ROCE(erdma), ROCE_NET, .most_numbers = 0xfffff, .id = RDMA_DRIVER_ERDMA, .abi = ERDMA_ABI_VERSION,
	.get_context = get_context, .alloc_pd = plain_pd,
	.create_ah = plain_ah, .create_cq = create_cq, .create_srq = no_srq, .create_qp = create_qp,
	.resize_cq = no_resize,
};
