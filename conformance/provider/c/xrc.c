// SPDX-License-Identifier: BSD-2-Clause

// Extended connections: domains, whose queue pairs receive into the shared receive queue that a request names. That
// queue's protection domain and completion queue are the receive's.
#include "emulated.h"

static int open_domain(struct call *c)
{
	struct ib_uverbs_open_xrcd q;
	TAKE(c, q);
	if (q.fd != (uint32_t)-1)
		return refuse("a domain of extended connections that a file names, descriptor", q.fd);
	struct xrcd *x = new_object(c->file, XRCD, sizeof *x);
	if (!x)
		return ENOMEM;
	struct ib_uverbs_open_xrcd_resp r = {.xrcd_handle = x->o.handle};
	return answer(c, &r, sizeof r);
}

static int close_domain(struct call *c)
{
	struct ib_uverbs_close_xrcd q;
	TAKE(c, q);
	struct xrcd *x = find_object(c->file, XRCD, q.xrcd_handle);
	return destroy_object(x ? &x->o : NULL);
}

// aim has a queue pair receive into the shared receive queue of a number, if it is of the queue pair's domain.
bool aim(struct qp *qp, uint32_t number)
{
	struct srq *srq = (struct srq *)object_of(number);
	if (!srq || srq->o.kind != SRQ || !srq->xrcd || srq->xrcd != qp->xrcd)
		return false;
	qp->srq = srq, qp->pd = srq->pd, qp->recv_cq = srq->cq;
	return true;
}

const struct command xrc_commands[] = {
	{IB_USER_VERBS_CMD_OPEN_XRCD, open_domain},
	{IB_USER_VERBS_CMD_CLOSE_XRCD, close_domain},
	{0, NULL},
};
