// SPDX-License-Identifier: BSD-2-Clause

// Commands of shared receive queues.
#include "emulated.h"

static int new_srq(struct call *c, const struct ib_uverbs_create_xsrq *q)
{
	struct pd *pd = find_object(c->file, PD, q->pd_handle);
	bool extended = q->srq_type == IBV_SRQT_XRC, tags = q->srq_type == IBV_SRQT_TM;
	struct xrcd *xrcd = extended ? find_object(c->file, XRCD, q->xrcd_handle) : NULL;
	struct cq *cq = extended || tags ? find_object(c->file, CQ, q->cq_handle) : NULL;
	if (!pd || q->max_wr > MOST_REQUESTS || q->max_sge > 31 || extended && !xrcd ||
		(extended || tags) && !cq || tags && (!q->max_num_tags || q->max_num_tags > MOST_TAGS))
		return EINVAL;
	struct srq *srq = new_object(c->file, SRQ, sizeof *srq);
	if (!srq)
		return ENOMEM;
	srq->pd = pd, srq->user = q->user_handle, srq->limit = q->srq_limit, srq->sges = q->max_sge;
	srq->requests = q->max_wr, srq->xrcd = xrcd, srq->cq = cq;
	int err = tags && !(srq->tags = new_tags(q->max_num_tags)) ? ENOMEM : driver->create_srq(c, srq);
	if (err) {
		free_object(&srq->o);
		return err;
	}
	pd->o.users++;
	if (xrcd)
		xrcd->o.users++;
	if (cq)
		cq->o.users++;
	struct ib_uverbs_create_srq_resp r = {
		.srq_handle = srq->o.handle, .max_wr = srq->requests, .max_sge = srq->sges, .srqn = srq->o.handle,
	};
	return answer(c, &r, sizeof r);
}

static int create_srq(struct call *c)
{
	struct ib_uverbs_create_srq q;
	TAKE(c, q);
	return new_srq(c, &(struct ib_uverbs_create_xsrq){
		.user_handle = q.user_handle, .srq_type = IBV_SRQT_BASIC, .pd_handle = q.pd_handle, .max_wr = q.max_wr,
		.max_sge = q.max_sge, .srq_limit = q.srq_limit,
	});
}

static int create_srq_ex(struct call *c)
{
	struct ib_uverbs_create_xsrq q;
	TAKE(c, q);
	return q.srq_type > IBV_SRQT_XRC && !(q.srq_type == IBV_SRQT_TM && infiniband()) ? refuse("shared receive queue of type", q.srq_type) : new_srq(c, &q);
}

static int modify_srq(struct call *c)
{
	enum { MAX_WR = 1, LIMIT = 2 };
	struct ib_uverbs_modify_srq q;
	TAKE(c, q);
	struct srq *srq = find_object(c->file, SRQ, q.srq_handle);
	if (!srq || q.attr_mask & MAX_WR || q.srq_limit >= srq->requests)
		return EINVAL; // mlx5 does not resize
	if (q.attr_mask & LIMIT)
		srq->limit = q.srq_limit;
	return 0;
}

static int query_srq(struct call *c)
{
	struct ib_uverbs_query_srq q;
	TAKE(c, q);
	struct srq *srq = find_object(c->file, SRQ, q.srq_handle);
	if (!srq)
		return ENOENT;
	struct ib_uverbs_query_srq_resp r = {.max_wr = srq->requests, .max_sge = srq->sges, .srq_limit = srq->limit};
	return answer(c, &r, sizeof r);
}

static int destroy_srq(struct call *c)
{
	struct ib_uverbs_destroy_srq q;
	TAKE(c, q);
	struct srq *srq = find_object(c->file, SRQ, q.srq_handle);
	if (!srq)
		return ENOENT;
	if (srq->o.users)
		return EBUSY;
	struct ib_uverbs_destroy_srq_resp r = {.events_reported = srq->async_sent};
	r.events_reported -= drop_unread(&c->file->async, sizeof(struct ib_uverbs_async_event_desc), srq->user);
	answer(c, &r, sizeof r);
	if (recording() && driver->record_srq)
		driver->record_srq(srq);
	srq->pd->o.users--;
	if (srq->xrcd)
		srq->xrcd->o.users--;
	if (srq->cq)
		srq->cq->o.users--;
	return destroy_object(&srq->o);
}

const struct command srq_commands[] = {
	{IB_USER_VERBS_CMD_CREATE_SRQ, create_srq},
	{IB_USER_VERBS_CMD_CREATE_XSRQ, create_srq_ex},
	{IB_USER_VERBS_CMD_MODIFY_SRQ, modify_srq},
	{IB_USER_VERBS_CMD_QUERY_SRQ, query_srq},
	{IB_USER_VERBS_CMD_DESTROY_SRQ, destroy_srq},
	{0, NULL},
};
