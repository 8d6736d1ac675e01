// SPDX-License-Identifier: BSD-2-Clause

// The driver of an hns adapter: driver-specific command data. Its provider identifies it only by its modalias. Writing
// a complete request to a doorbell is not offered, because it needs 64-byte stores, which x86 lacks: libhns would copy
// 64 bytes from a 32-byte request.
#include <rdma/hns-abi.h>

#include "idle.h"

enum { VERSION = 0x130, ENTRY = 64, DATA = 16, NUMBERS = 1 << 16 };

static const struct ib_uverbs_query_device_resp device = {
	ROCE_DEVICE, .vendor_id = 0x19e5, .vendor_part_id = 0xa222, .hw_ver = VERSION, .max_sge = 32, .max_sge_rd = 32,
	.max_cqe = 1 << 20, ROCE_SRQ(32),
};

static int get_context(struct call *c)
{
	if (!new_bells(c->file, 0))
		return ENOMEM;
	struct hns_roce_ib_alloc_ucontext_resp r = {
		.qp_tab_size = NUMBERS, .cqe_size = ENTRY, .srq_tab_size = NUMBERS, .config = HNS_ROCE_RSP_EXSGE_FLAGS,
		.max_inline_data = 1024,
	};
	return answer_driver(c, &r, sizeof r);
}

static int create_ah(struct call *c, struct ah *ah)
{
	static const uint8_t to[8] = {2, 0x67, 0x6f, 0x76, 0x65, 0x72};
	return (void)ah, answer_driver(c, to, sizeof to);
}

static int create_cq(struct call *c, struct cq *cq)
{
	struct hns_roce_ib_create_cq q;
	take_driver(c, &q, sizeof q);
	if (!q.buf_addr || !q.db_addr)
		return EINVAL;
	struct hns_roce_ib_create_cq_resp r = {.cqn = cq->o.handle, .cap_flags = HNS_ROCE_CQ_FLAG_RECORD_DB};
	return answer_driver(c, &r, sizeof r);
}

static int create_srq(struct call *c, struct srq *srq)
{
	struct hns_roce_ib_create_srq q;
	take_driver(c, &q, sizeof q);
	if (!q.buf_addr || !q.que_addr)
		return EINVAL;
	srq->requests = round_up(srq->requests), srq->sges = round_up(srq->sges);
	struct hns_roce_ib_create_srq_resp r = {.srqn = srq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct hns_roce_ib_create_qp q;
	take_driver(c, &q, sizeof q);
	if (!q.buf_addr || q.log_sq_bb_count > 15 || q.log_sq_stride > 12)
		return EINVAL;
	qp->attr.max_recv_wr = qp->srq ? 0 : round_up(qp->attr.max_recv_wr);
	qp->attr.max_recv_sge = round_up(qp->attr.max_recv_sge);
	qp->sends = memory_of(q.buf_addr, (size_t)1 << q.log_sq_bb_count << q.log_sq_stride);
	qp->bells = memory_of(q.db_addr, q.db_addr ? 4 : 0);
	struct hns_roce_ib_create_qp_resp r = {.cap_flags = HNS_ROCE_QP_CAP_RQ_RECORD_DB | HNS_ROCE_QP_CAP_SQ_RECORD_DB};
	return answer_driver(c, &r, sizeof r);
}

const struct driver hns = {
	ROCE(hns), ROCE_NET, .most_numbers = NUMBERS - 1, .get_context = get_context, .alloc_pd = plain_pd, .create_ah = create_ah,
	.create_cq = create_cq, .create_srq = create_srq, .create_qp = create_qp,
	.resize_cq = no_resize,
};
