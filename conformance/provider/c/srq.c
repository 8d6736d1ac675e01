// SPDX-License-Identifier: BSD-2-Clause

// Shared receive queues: the commands.
#include "emulated.h"

static int create_srq(struct call *c)
{
	struct ib_uverbs_create_srq q;
	TAKE(c, q);
	struct pd *pd = find_object(c->file, PD, q.pd_handle);
	if (!pd || !q.max_wr || q.max_wr > MOST_REQUESTS || q.max_sge > 31)
		return EINVAL;
	struct srq *srq = new_object(c->file, SRQ, sizeof *srq);
	if (!srq)
		return ENOMEM;
	srq->pd = pd, srq->user = q.user_handle, srq->limit = q.srq_limit, srq->sges = q.max_sge;
	srq->requests = q.max_wr;
	int err = driver->create_srq(c, srq);
	if (err) {
		free_object(&srq->o);
		return err;
	}
	pd->o.users++;
	struct ib_uverbs_create_srq_resp r = {
		.srq_handle = srq->o.handle, .max_wr = srq->requests, .max_sge = srq->sges, .srqn = srq->o.handle,
	};
	return answer(c, &r, sizeof r);
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
	srq->pd->o.users--;
	return destroy_object(&srq->o);
}

const struct command srq_commands[] = {
	{IB_USER_VERBS_CMD_CREATE_SRQ, create_srq},
	{IB_USER_VERBS_CMD_MODIFY_SRQ, modify_srq},
	{IB_USER_VERBS_CMD_QUERY_SRQ, query_srq},
	{IB_USER_VERBS_CMD_DESTROY_SRQ, destroy_srq},
	{0, NULL},
};
