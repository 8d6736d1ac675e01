// SPDX-License-Identifier: BSD-2-Clause

// XRC domains, whose queue pairs receive into the shared receive queue that a request names, with that queue's
// protection domain and completion queue.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "emulated.h"

static struct xrcd *wanted, *found;

static void match_domain(void *o)
{
	struct xrcd *x = o;
	if (x->inode == wanted->inode && x->device == wanted->device)
		found = x;
}

// named finds the domain of a file, identified by device and inode rather than descriptor.
static int named(struct xrcd *like, int fd, uint32_t flags)
{
	struct stat st;
	if (syscall(SYS_fstat, fd, &st))
		return EBADF;
	like->device = st.st_dev, like->inode = st.st_ino;
	wanted = like, found = NULL;
	each(XRCD, match_domain);
	if (found)
		like->domain = found->domain;
	return found ? flags & O_EXCL ? EINVAL : 0 : flags & O_CREAT ? 0 : EAGAIN;
}

static int open_domain(struct call *c)
{
	struct ib_uverbs_open_xrcd q;
	TAKE(c, q);
	struct xrcd like = {0};
	int err = q.fd == (uint32_t)-1 ? 0 : named(&like, q.fd, q.oflags);
	if (err)
		return err;
	struct xrcd *x = new_object(c->file, XRCD, sizeof *x);
	if (!x)
		return ENOMEM;
	x->domain = like.domain ? like.domain : ++kernel->last_domain, x->device = like.device, x->inode = like.inode;
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

// aim makes a queue pair receive into the shared receive queue with this number, if it is in the queue pair's domain.
bool aim(struct qp *qp, uint32_t number)
{
	struct srq *srq = (struct srq *)object_of(number);
	if (!srq || srq->o.kind != SRQ || !srq->xrcd || srq->xrcd->domain != qp->xrcd->domain)
		return false;
	qp->srq = srq, qp->pd = srq->pd, qp->recv_cq = srq->cq;
	return true;
}

const struct command xrc_commands[] = {
	{IB_USER_VERBS_CMD_OPEN_XRCD, open_domain},
	{IB_USER_VERBS_CMD_CLOSE_XRCD, close_domain},
	{0, NULL},
};
