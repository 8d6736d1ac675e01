// SPDX-License-Identifier: BSD-2-Clause

// The driver of an mlx4 adapter: driver-specific command data.
#include <rdma/mlx4-abi.h>

#include "mlx4.h"

enum { BLUE_FLAME = 512 };

static const struct ib_uverbs_query_device_resp device = {
	ROCE_DEVICE, .vendor_id = 0x2c9, .vendor_part_id = 4103, .max_sge = 30, .max_sge_rd = 30, .max_cqe = MOST_ENTRIES,
	ROCE_SRQ(31), .device_cap_flags = IBV_DEVICE_XRC,
};

// libmlx4 resolves link-local addresses itself; for others it uses the kernel's network, which is not emulated.
static const struct ib_uverbs_query_port_resp port = {ROCE_PORT};

static const struct gid gids[] = {
	{{0xfe, 0x80, [8] = 0x02, 0x67, 0x6f, 0xff, 0xfe, 0x76, 0x65, 0x72}, IB_UVERBS_GID_TYPE_ROCE_V1},
	{{0xfe, 0x80, [8] = 0x02, 0x67, 0x6f, 0xff, 0xfe, 0x76, 0x65, 0x72}, IB_UVERBS_GID_TYPE_ROCE_V2},
};

static int get_context(struct call *c)
{
	if (!new_bells(c->file, 0) || !new_bells(c->file, PAGE)) // the second one accepts complete requests
		return ENOMEM;
	struct mlx4_ib_alloc_ucontext_resp r = {
		.dev_caps = MLX4_USER_DEV_CAP_LARGE_CQE, .qp_tab_size = 1 << 16, .bf_reg_size = BLUE_FLAME,
		.bf_regs_per_page = PAGE / BLUE_FLAME, .cqe_size = ENTRY,
	};
	return answer_driver(c, &r, sizeof r);
}

static int create_cq(struct call *c, struct cq *cq)
{
	struct mlx4_ib_create_cq q;
	take_driver(c, &q, sizeof q);
	if (!power_of_two(cq->entries + 1) || !q.buf_addr || !q.db_addr)
		return EINVAL;
	cq->buffer = address(q.buf_addr), cq->entry_size = ENTRY;
	cq->record = (volatile uint32_t *)address(q.db_addr);
	mlx4_clear_entries(cq, cq->buffer, cq->entries);
	struct mlx4_ib_create_cq_resp r = {.cqn = cq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int resize_cq(struct call *c, struct cq *cq, uint32_t entries)
{
	struct mlx4_ib_resize_cq q;
	take_driver(c, &q, sizeof q);
	return power_of_two(entries + 1) && q.buf_addr ? mlx4_switch_buffer(cq, address(q.buf_addr), entries) : EINVAL;
}

static int create_srq(struct call *c, struct srq *srq)
{
	struct mlx4_ib_create_srq q;
	take_driver(c, &q, sizeof q);
	if (!q.buf_addr || !q.db_addr)
		return EINVAL;
	srq->requests = round_up(srq->requests + 1) - 1;
	srq->buffer = address(q.buf_addr), srq->record = (volatile uint32_t *)address(q.db_addr);
	for (srq->stride = 2 * DATA; srq->stride < DATA * (srq->sges + 1);)
		srq->stride *= 2;
	struct mlx4_ib_create_srq_resp r = {.srqn = srq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

// The queue with larger requests comes first in the buffer.
static int create_qp(struct call *c, struct qp *qp)
{
	struct mlx4_ib_create_qp q;
	take_driver(c, &q, sizeof q);
	if (qp->type == IBV_QPT_XRC_RECV)
		return answer_driver(c, "", 0); // it has no queues
	bool receives = !qp->srq && qp->type != IBV_QPT_XRC_SEND;
	if (q.log_sq_bb_count > 15 || q.log_sq_stride < 6 || q.log_sq_stride > MOST_STRIDE || q.inl_recv_sz ||
		!q.buf_addr || receives && !q.db_addr)
		return EINVAL;
	if (receives) {
		qp->attr.max_recv_wr = qp->rq_wqes = round_up(qp->attr.max_recv_wr);
		qp->attr.max_recv_sge = round_up(qp->attr.max_recv_sge);
		qp->rq_stride = qp->attr.max_recv_sge * DATA;
	}
	qp->sq_blocks = 1u << q.log_sq_bb_count, qp->entry_size = 1u << q.log_sq_stride;
	size_t sends = (size_t)qp->sq_blocks * qp->entry_size, recvs = (size_t)qp->rq_wqes * qp->rq_stride;
	bool first = qp->rq_stride > qp->entry_size; // receives come first
	qp->rq = address(q.buf_addr) + (first ? 0 : sends), qp->sq = address(q.buf_addr) + (first ? recvs : 0);
	qp->record = (volatile uint32_t *)address(q.db_addr);
	qp->sends = (struct mapping){.at = qp->sq, .size = sends};
	qp->receives = (struct mapping){.at = qp->rq, .size = recvs};
	qp->bells = memory_of(q.db_addr, q.db_addr ? 4 : 0);
	return answer_driver(c, "", 0);
}

const struct driver mlx4 = {
	ROCE(mlx4), .port = &port, .gids = gids, .gid_count = 2, .datagram = 4096, .most_numbers = 0x7fffff, .target = 1 << 23,
	.id = RDMA_DRIVER_MLX4, .abi = MLX4_IB_UVERBS_ABI_VERSION,
	.get_context = get_context, .alloc_pd = plain_pd, .create_ah = plain_ah, .create_cq = create_cq,
	.resize_cq = resize_cq, .create_srq = create_srq, .create_qp = create_qp,
	.rung = bells_rung, .next_send = mlx4_next_send, .next_receive = mlx4_next_receive,
	.consume_receive = mlx4_consume_receive, .complete = mlx4_complete, .take_request = mlx4_take_request,
};
