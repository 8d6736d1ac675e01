// SPDX-License-Identifier: BSD-2-Clause

// The driver of an erdma adapter: driver-specific command data.
#include <rdma/erdma-abi.h>

#include "erdma.h"

enum { NO_NUMBER = 0x100 }; // in an arm request

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
	if (!power_of_two(cq->entries) || !q.qbuf_va || !q.db_record_va || q.qbuf_len / ENTRY < cq->entries)
		return EINVAL;
	cq->buffer = address(q.qbuf_va), cq->record = (volatile uint32_t *)address(q.db_record_va);
	cq->told = NO_NUMBER;
	*(volatile uint64_t *)cq->record = 0; // liberdma writes it after this command
	struct erdma_uresp_create_cq r = {.cq_id = cq->o.handle, .num_cqe = cq->entries};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct erdma_ureq_create_qp q;
	take_driver(c, &q, sizeof q);
	if (qp->type != IBV_QPT_RC)
		return refuse("queue pair of type", qp->type);
	uint32_t sends = round_up(qp->attr.max_send_wr * BLOCKS), receives = round_up(qp->attr.max_recv_wr);
	uint32_t offset = (sends * SEND_BLOCK + PAGE - 1) & -PAGE;
	if (!q.qbuf_va || !q.db_record_va || q.qbuf_len < offset + receives * RECEIVE)
		return EINVAL;
	qp->sq = address(q.qbuf_va), qp->sq_blocks = sends, qp->rq = qp->sq + offset, qp->rq_wqes = receives;
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
	.resize_cq = no_resize, .no_reset = true, .rung = bells_rung, .next_send = erdma_next_send,
	.next_receive = erdma_next_receive, .consume_receive = erdma_consume_receive, .complete = erdma_complete,
	.take_request = erdma_take_request,
};
