// SPDX-License-Identifier: BSD-2-Clause

// The driver of a bnxt_re adapter: driver-specific command data.
#include <rdma/bnxt_re-abi.h>

#include "idle.h"

enum { BELLS = PAGE, FIRST_PHASE = 1, CHIP = 0x1750, ENTRY = 32, MOST_CQE = 1 << 16 };

static const struct ib_uverbs_query_device_resp device = {
	ROCE_DEVICE, .vendor_id = 0x14e4, .vendor_part_id = CHIP, .max_sge = 6, .max_sge_rd = 6, .max_cqe = MOST_CQE,
	ROCE_SRQ(6),
};

static int get_context(struct call *c)
{
	if (!new_bells(c->file, 0) || !new_bells(c->file, BELLS)) // the first page has numbers of address handles
		return ENOMEM;
	struct bnxt_re_uctx_resp r = {
		.dev_id = 1, .max_qp = 1 << 14, .pg_size = PAGE, .cqe_sz = ENTRY, .max_cqd = MOST_CQE,
		.comp_mask = BNXT_RE_UCNTX_CMASK_HAVE_CCTX, .chip_id0 = CHIP,
	};
	return answer_driver(c, &r, sizeof r);
}

static int alloc_pd(struct call *c, struct pd *pd)
{
	struct bnxt_re_pd_resp r = {.pdid = pd->o.handle, .dpi = 1, .dbr = BELLS};
	return answer_driver(c, &r, sizeof r);
}

static int create_cq(struct call *c, struct cq *cq)
{
	struct bnxt_re_cq_req q;
	take_driver(c, &q, sizeof q);
	if (!q.cq_va)
		return EINVAL;
	struct bnxt_re_cq_resp r = {.cqid = cq->o.handle, .phase = FIRST_PHASE};
	return answer_driver(c, &r, sizeof r);
}

static int create_srq(struct call *c, struct srq *srq)
{
	struct bnxt_re_srq_req q;
	take_driver(c, &q, sizeof q);
	if (!q.srqva)
		return EINVAL;
	struct bnxt_re_srq_resp r = {.srqid = srq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct bnxt_re_qp_req q;
	take_driver(c, &q, sizeof q);
	if (!q.qpsva || !qp->srq && !q.qprva)
		return EINVAL;
	qp->sends = memory_of(q.qpsva, PAGE); // only the provider knows their length
	qp->receives = memory_of(q.qprva, q.qprva ? PAGE : 0);
	struct bnxt_re_qp_resp r = {.qpid = qp->number};
	return answer_driver(c, &r, sizeof r);
}

const struct driver bnxt_re = {
	ROCE(bnxt_re), ROCE_NET, .id = RDMA_DRIVER_BNXT_RE, .abi = BNXT_RE_ABI_VERSION, .most_numbers = 0xfffff,
	.get_context = get_context, .alloc_pd = alloc_pd, .create_ah = plain_ah, .create_cq = create_cq,
	.create_srq = create_srq, .create_qp = create_qp,
	.resize_cq = no_resize,
};
