// SPDX-License-Identifier: BSD-2-Clause

// Commands of queue pairs and shared receive queues. The kernel's core checks the required and optional attributes of a
// state change before it calls a driver.
#include <string.h>
#include <unistd.h>

#include "emulated.h"

// Short names for the table below.
enum {
	RC = IBV_QPT_RC, UC = IBV_QPT_UC, UD = IBV_QPT_UD, XRC = IBV_QPT_XRC_SEND, XRC_RECV = IBV_QPT_XRC_RECV,
	RAW = IBV_QPT_RAW_PACKET, SRD = IBV_QPT_DRIVER, // of a scalable driver
	DCI = 0xf0, DCT, // ends of dynamic connections, in the table below
};
enum { RESET = IBV_QPS_RESET, INIT = IBV_QPS_INIT, RTR = IBV_QPS_RTR, RTS = IBV_QPS_RTS, ERR = IBV_QPS_ERR };
enum {
	STATE = IBV_QP_STATE, CURRENT = IBV_QP_CUR_STATE, ACCESS = IBV_QP_ACCESS_FLAGS, PKEY = IBV_QP_PKEY_INDEX,
	PORT = IBV_QP_PORT, QKEY = IBV_QP_QKEY, AV = IBV_QP_AV, MTU = IBV_QP_PATH_MTU, TIMEOUT = IBV_QP_TIMEOUT,
	RETRY = IBV_QP_RETRY_CNT, RNR_RETRY = IBV_QP_RNR_RETRY, RQ_PSN = IBV_QP_RQ_PSN, READS = IBV_QP_MAX_QP_RD_ATOMIC,
	ALT = IBV_QP_ALT_PATH, TIMER = IBV_QP_MIN_RNR_TIMER, SQ_PSN = IBV_QP_SQ_PSN,
	DEST_READS = IBV_QP_MAX_DEST_RD_ATOMIC, MIGRATION = IBV_QP_PATH_MIG_STATE, DEST = IBV_QP_DEST_QPN,
};

struct qp *find_qp(uint32_t number)
{
	struct qp *qp = kernel->qps[number % QP_LISTS];
	while (qp && qp->number != number)
		qp = qp->next;
	return qp;
}

// forget_qp removes a queue pair from the table and releases the objects that it uses.
static void forget_qp(struct qp *qp)
{
	for (struct qp **at = &kernel->qps[qp->number % QP_LISTS]; *at; at = &(*at)->next)
		if (*at == qp) {
			*at = qp->next;
			break;
		}
	forget_counters(qp);
	if (qp->xrcd) {
		qp->xrcd->o.users--;
		return;
	}
	qp->pd->o.users--, qp->send_cq->o.users--, qp->recv_cq->o.users--;
	if (qp->srq)
		qp->srq->o.users--;
}

static struct qp *shared;
static struct opened_qp *another;

static void match_shared(void *o)
{
	if (((struct opened_qp *)o)->qp == shared)
		another = o;
}

// pass_on gives a queue pair whose first handle is destroyed the place of another handle, if there is one.
static bool pass_on(struct qp *qp)
{
	shared = qp, another = NULL;
	each(OPENED_QP, match_shared);
	if (!another)
		return false;
	kernel->objects[qp->o.handle] = NULL;
	hold(OPENED_QP, -1);
	qp->xrcd->o.users--;
	qp->o = (struct object){.kind = QP, .handle = another->o.handle, .file = another->o.file};
	qp->xrcd = another->xrcd, qp->user = another->user, qp->async_sent = another->async_sent;
	kernel->objects[qp->o.handle] = &qp->o;
	drop(another);
	return true;
}

// release_qp releases a handle of a queue pair, and frees the queue pair with the last one.
void release_qp(struct qp *qp)
{
	if (pass_on(qp))
		return;
	qp->attr.qp_state = RESET;
	drop_waiting(qp);
	forget_qp(qp);
	free_object(&qp->o);
}

void release_opened_qp(struct opened_qp *h)
{
	h->xrcd->o.users--;
	free_object(&h->o);
}

static uint32_t event_type;

static void event_of_opened(void *o)
{
	struct opened_qp *h = o;
	if (h->qp == shared)
		async_event(h->o.file, event_type, h->user, &h->async_sent);
}

// qp_event sends an event for each handle of a queue pair.
void qp_event(struct qp *qp, uint32_t type)
{
	async_event(qp->o.file, type, qp->user, &qp->async_sent);
	shared = qp, event_type = type;
	if (qp->xrcd)
		each(OPENED_QP, event_of_opened);
}

// qp_of finds the queue pair of a handle.
static struct qp *qp_of(struct file *f, uint32_t handle)
{
	struct opened_qp *h = find_object(f, OPENED_QP, handle);
	return h ? h->qp : find_object(f, QP, handle);
}

static int open_qp(struct call *c)
{
	struct ib_uverbs_open_qp q;
	TAKE(c, q);
	struct xrcd *x = find_object(c->file, XRCD, q.pd_handle);
	struct qp *qp = find_qp(q.qpn);
	if (!x || q.qp_type != XRC_RECV || !qp || qp->type != XRC_RECV || qp->xrcd->domain != x->domain)
		return EINVAL;
	struct opened_qp *h = new_object(c->file, OPENED_QP, sizeof *h);
	if (!h)
		return ENOMEM;
	h->qp = qp, h->xrcd = x, h->user = q.user_handle;
	x->o.users++;
	struct ib_uverbs_create_qp_resp r = {.qp_handle = h->o.handle, .qpn = qp->number};
	return answer(c, &r, sizeof r);
}

static bool offered(uint32_t type)
{
	switch (type) {
	case UD: return true;
	case RAW: return driver->packets;
	case SRD: return driver->scalable || driver->dynamic;
	case RC: case UC: case XRC: case XRC_RECV: return !driver->scalable;
	}
	return false;
}

static int new_qp(struct call *c, const struct ib_uverbs_ex_create_qp *q, struct ib_uverbs_create_qp_resp *r)
{
	bool target = q->qp_type == XRC_RECV; // its XRC domain takes the place of the protection domain
	if (!offered(q->qp_type))
		return refuse("queue pair of type", q->qp_type);
	enum { BLOCK_OWN_MULTICAST = 2 }; // multicast is not emulated
	if (q->create_flags & ~BLOCK_OWN_MULTICAST || q->comp_mask)
		return refuse("flags of a queue pair", (uint64_t)q->comp_mask << 32 | q->create_flags);
	if (q->max_send_wr > MOST_REQUESTS || q->max_recv_wr > MOST_REQUESTS)
		return EINVAL;
	struct xrcd *xrcd = target ? find_object(c->file, XRCD, q->pd_handle) : NULL;
	struct pd *pd = target ? NULL : find_object(c->file, PD, q->pd_handle);
	struct cq *send = target ? NULL : find_object(c->file, CQ, q->send_cq_handle);
	bool none = target || q->qp_type == XRC; // no receives
	struct cq *recv = none ? send : find_object(c->file, CQ, q->recv_cq_handle);
	struct srq *srq = q->is_srq && !target ? find_object(c->file, SRQ, q->srq_handle) : NULL;
	if (srq && srq->tags)
		recv = srq->cq; // where its receives complete
	if (target ? !xrcd : !pd || !send || !recv || q->is_srq && !srq)
		return EINVAL;
	struct qp *qp = new_object(c->file, QP, sizeof *qp);
	if (!qp)
		return ENOMEM;
	qp->pd = pd, qp->send_cq = send, qp->recv_cq = recv, qp->srq = srq, qp->xrcd = xrcd;
	qp->type = q->qp_type, qp->all_signaled = q->sq_sig_all, qp->user = q->user_handle;
	if (!kernel->last_number) // random start: queue pairs of another process are unreachable and should rarely have the same numbers
		kernel->last_number = recording() ? 256 : (uint32_t)getpid() << 8;
	do
		qp->number = ++kernel->last_number & driver->most_numbers | (target ? driver->target : 0);
	while (!qp->number || find_qp(qp->number));
	qp->attr.rnr_retry = driver->scalable && q->qp_type == SRD ? 7 : 0; // unlimited by default
	qp->attr.max_send_wr = q->max_send_wr, qp->attr.max_recv_wr = q->max_recv_wr;
	qp->attr.max_send_sge = q->max_send_sge, qp->attr.max_recv_sge = q->max_recv_sge;
	qp->attr.max_inline_data = q->max_inline_data;
	int err = driver->create_qp(c, qp);
	if (err) {
		free_object(&qp->o);
		return err;
	}
	if (target)
		xrcd->o.users++;
	else
		pd->o.users++, send->o.users++, recv->o.users++;
	if (srq)
		srq->o.users++;
	qp->next = kernel->qps[qp->number % QP_LISTS];
	kernel->qps[qp->number % QP_LISTS] = qp;
	*r = (struct ib_uverbs_create_qp_resp){
		.qp_handle = qp->o.handle, .qpn = qp->dynamic == TARGET ? 0 : qp->number, // a target's is known in RTR
		.max_send_wr = qp->attr.max_send_wr, .max_recv_wr = qp->attr.max_recv_wr, // rounded by the driver
		.max_send_sge = qp->attr.max_send_sge, .max_recv_sge = qp->attr.max_recv_sge,
		.max_inline_data = q->max_inline_data,
	};
	return 0;
}

static int create_qp(struct call *c)
{
	struct ib_uverbs_create_qp q;
	struct ib_uverbs_create_qp_resp r;
	TAKE(c, q);
	struct ib_uverbs_ex_create_qp x = {
		.pd_handle = q.pd_handle, .send_cq_handle = q.send_cq_handle, .recv_cq_handle = q.recv_cq_handle,
		.srq_handle = q.srq_handle, .max_send_wr = q.max_send_wr, .max_recv_wr = q.max_recv_wr,
		.max_send_sge = q.max_send_sge, .max_recv_sge = q.max_recv_sge, .max_inline_data = q.max_inline_data,
		.sq_sig_all = q.sq_sig_all, .qp_type = q.qp_type, .is_srq = q.is_srq, .user_handle = q.user_handle,
	};
	int err = new_qp(c, &x, &r);
	return err ? err : answer(c, &r, sizeof r);
}

static int create_qp_ex(struct call *c)
{
	struct ib_uverbs_ex_create_qp q = {0};
	struct ib_uverbs_ex_create_qp_resp r = {.response_length = sizeof r};
	memcpy(&q, c->in, c->in_size < sizeof q ? c->in_size : sizeof q);
	int err = new_qp(c, &q, &r.base);
	return err ? err : answer(c, &r, sizeof r);
}

static const struct transition {
	uint8_t type, from, to;
	uint32_t needs, allows;
} transitions[] = {
	{RC, RESET, INIT, PKEY | PORT | ACCESS, 0},
	{UC, RESET, INIT, PKEY | PORT | ACCESS, 0},
	{XRC, RESET, INIT, PKEY | PORT | ACCESS, 0},
	{XRC_RECV, RESET, INIT, PKEY | PORT | ACCESS, 0},
	{UD, RESET, INIT, PKEY | PORT | QKEY, 0},
	{RC, INIT, INIT, 0, PKEY | PORT | ACCESS},
	{UC, INIT, INIT, 0, PKEY | PORT | ACCESS},
	{XRC, INIT, INIT, 0, PKEY | PORT | ACCESS},
	{XRC_RECV, INIT, INIT, 0, PKEY | PORT | ACCESS},
	{UD, INIT, INIT, 0, PKEY | PORT | QKEY},
	{RC, INIT, RTR, AV | MTU | DEST | RQ_PSN | DEST_READS | TIMER, ALT | ACCESS | PKEY},
	{UC, INIT, RTR, AV | MTU | DEST | RQ_PSN, ALT | ACCESS | PKEY},
	{XRC, INIT, RTR, AV | MTU | DEST | RQ_PSN, ALT | ACCESS | PKEY},
	{XRC_RECV, INIT, RTR, AV | MTU | DEST | RQ_PSN | DEST_READS | TIMER, ALT | ACCESS | PKEY},
	{UD, INIT, RTR, 0, PKEY | QKEY},
	{RC, RTR, RTS, TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | READS, CURRENT | ALT | ACCESS | TIMER | MIGRATION},
	{UC, RTR, RTS, SQ_PSN, CURRENT | ALT | ACCESS | MIGRATION},
	{XRC, RTR, RTS, TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | READS, CURRENT | ALT | ACCESS | MIGRATION},
	{XRC_RECV, RTR, RTS, TIMEOUT | SQ_PSN, CURRENT | ALT | ACCESS | TIMER | MIGRATION},
	{UD, RTR, RTS, SQ_PSN, CURRENT | QKEY},
	{RC, RTS, RTS, 0, CURRENT | ACCESS | ALT | TIMER | MIGRATION},
	{UC, RTS, RTS, 0, CURRENT | ACCESS | ALT | MIGRATION},
	{XRC, RTS, RTS, 0, CURRENT | ACCESS | ALT | MIGRATION},
	{UD, RTS, RTS, 0, CURRENT | QKEY},
	{RAW, RESET, INIT, PORT, 0},
	{RAW, INIT, INIT, 0, PORT},
	{RAW, INIT, RTR, 0, 0},
	{RAW, RTR, RTS, 0, CURRENT},
	{RAW, RTS, RTS, 0, CURRENT},
	{SRD, RESET, INIT, PKEY | PORT | QKEY, 0},
	{SRD, INIT, INIT, 0, PKEY | PORT | QKEY},
	{SRD, INIT, RTR, 0, PKEY | QKEY},
	{SRD, RTR, RTS, SQ_PSN, CURRENT | QKEY | RNR_RETRY},
	{SRD, RTS, RTS, 0, CURRENT | QKEY},
	{DCI, RESET, INIT, PKEY | PORT, 0},
	{DCI, INIT, INIT, 0, PKEY | PORT},
	{DCI, INIT, RTR, MTU, PKEY | AV},
	{DCI, RTR, RTS, TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | READS, TIMER},
	{DCI, RTS, RTS, 0, TIMER},
	{DCT, RESET, INIT, PKEY | PORT | ACCESS, 0},
	{DCT, INIT, RTR, AV | MTU | TIMER, 0},
};

static bool allowed(const struct qp *qp, uint32_t to, uint32_t mask)
{
	static const uint32_t dynamic[] = {[INITIATOR] = DCI, [TARGET] = DCT};
	uint32_t type = qp->dynamic ? dynamic[qp->dynamic] : qp->type;
	if (qp->dynamic != TARGET && (to == RESET || to == ERR))
		return !(mask & ~STATE);
	for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
		const struct transition *t = &transitions[i];
		if (t->type == type && t->from == qp->attr.qp_state && t->to == to)
			return (mask & t->needs) == t->needs && !(mask & ~(t->needs | t->allows | STATE));
	}
	return false;
}

static void set_route(struct ib_uverbs_ah_attr *a, const struct ib_uverbs_qp_dest *d)
{
	memcpy(a->grh.dgid, d->dgid, sizeof a->grh.dgid);
	a->grh.flow_label = d->flow_label, a->grh.sgid_index = d->sgid_index, a->grh.hop_limit = d->hop_limit;
	a->grh.traffic_class = d->traffic_class;
	a->dlid = d->dlid, a->sl = d->sl, a->src_path_bits = d->src_path_bits, a->static_rate = d->static_rate;
	a->is_global = d->is_global, a->port_num = d->port_num;
}

// others returns attributes that belong to the other end of an XRC connection. Programs set them as for RC, and the
// kernel ignores them.
static uint32_t others(const struct qp *qp)
{
	return qp->type == XRC ? DEST_READS | TIMER : qp->type == XRC_RECV ? READS | RETRY | RNR_RETRY : 0;
}

static int change(struct call *c, const struct ib_uverbs_modify_qp *q)
{
	struct qp *qp = qp_of(c->file, q->qp_handle);
	if (!qp)
		return ENOENT;
	uint32_t mask = q->attr_mask & ~others(qp), to = mask & STATE ? q->qp_state : qp->attr.qp_state;
	struct ib_uverbs_qp_attr *a = &qp->attr;
	if (mask & CURRENT && q->cur_qp_state != a->qp_state)
		return EINVAL;
	if (to == IBV_QPS_SQD || to == IBV_QPS_SQE || to == RESET && driver->no_reset)
		return refuse("state of a queue pair", to);
	if (!allowed(qp, to, mask) || mask & PORT && q->port_num != 1 || mask & PKEY && q->pkey_index)
		return EINVAL;
	static const uint8_t nobody[16]; // cannot be resolved, which is not tried for a target
	if (mask & AV && (!q->dest.is_global && !infiniband() ||
		!qp->dynamic && q->dest.is_global && memcmp(q->dest.dgid, nobody, sizeof nobody) == 0) ||
		mask & MTU && (q->path_mtu < 1 || q->path_mtu > 5))
		return EINVAL; // Ethernet needs a GRH
	if (mask & READS && q->max_rd_atomic > 16 || mask & DEST_READS && q->max_dest_rd_atomic > 16)
		return EINVAL; // attributes outside the mask may be uninitialized
	if (mask & PKEY) a->pkey_index = q->pkey_index;
	if (mask & PORT) a->port_num = q->port_num;
	if (mask & ACCESS) a->qp_access_flags = q->qp_access_flags;
	if (mask & QKEY) a->qkey = q->qkey;
	if (mask & AV) set_route(&a->ah_attr, &q->dest);
	if (mask & MTU) a->path_mtu = q->path_mtu;
	if (mask & TIMEOUT) a->timeout = q->timeout;
	if (mask & RETRY) a->retry_cnt = q->retry_cnt;
	if (mask & RNR_RETRY) a->rnr_retry = q->rnr_retry;
	if (mask & RQ_PSN) a->rq_psn = q->rq_psn & 0xffffff;
	if (mask & SQ_PSN) a->sq_psn = q->sq_psn & 0xffffff;
	if (mask & READS) a->max_rd_atomic = q->max_rd_atomic;
	if (mask & DEST_READS) a->max_dest_rd_atomic = q->max_dest_rd_atomic;
	if (mask & TIMER) a->min_rnr_timer = q->min_rnr_timer;
	if (mask & DEST) a->dest_qp_num = q->dest_qp_num;
	if (to == RESET) {
		a->qp_state = RESET;
		drop_waiting(qp);
		if (driver->reset_qp)
			driver->reset_qp(qp);
		qp->rq_head = qp->sq_head = 0;
		qp->deadline = 0;
		qp->established = false;
	}
	if (to == ERR)
		fail_qp(qp);
	a->qp_state = a->cur_qp_state = to;
	run_queues();
	return 0;
}

static int modify_qp(struct call *c)
{
	struct ib_uverbs_modify_qp q;
	TAKE(c, q);
	return change(c, &q);
}

static int modify_qp_ex(struct call *c)
{
	struct ib_uverbs_ex_modify_qp q;
	struct ib_uverbs_ex_modify_qp_resp r = {.response_length = sizeof r};
	TAKE(c, q);
	int err = q.rate_limit ? refuse("rate limit", q.rate_limit) : change(c, &q.base);
	if (err)
		return err;
	answer(c, &r, sizeof r);
	const struct qp *qp = find_object(c->file, QP, q.base.qp_handle);
	return qp->dynamic == TARGET && qp->attr.qp_state == RTR ? driver->target_ready(c, qp) : 0;
}

static int query_qp(struct call *c)
{
	struct ib_uverbs_query_qp q;
	TAKE(c, q);
	struct qp *qp = qp_of(c->file, q.qp_handle);
	if (!qp)
		return ENOENT;
	const struct ib_uverbs_qp_attr *a = &qp->attr;
	struct ib_uverbs_query_qp_resp r = {
		.max_send_wr = a->max_send_wr, .max_recv_wr = a->max_recv_wr, .max_send_sge = a->max_send_sge,
		.max_recv_sge = a->max_recv_sge, .max_inline_data = a->max_inline_data, .qkey = a->qkey, .rq_psn = a->rq_psn,
		.sq_psn = a->sq_psn, .dest_qp_num = a->dest_qp_num, .qp_access_flags = a->qp_access_flags,
		.pkey_index = a->pkey_index, .qp_state = a->qp_state, .cur_qp_state = a->qp_state, .path_mtu = a->path_mtu,
		.max_rd_atomic = a->max_rd_atomic, .max_dest_rd_atomic = a->max_dest_rd_atomic,
		.min_rnr_timer = a->min_rnr_timer,
		.port_num = a->port_num, .timeout = a->timeout, .retry_cnt = a->retry_cnt, .rnr_retry = a->rnr_retry,
		.sq_sig_all = qp->all_signaled,
		.dest = {
			.flow_label = a->ah_attr.grh.flow_label, .sgid_index = a->ah_attr.grh.sgid_index, .sl = a->ah_attr.sl,
			.hop_limit = a->ah_attr.grh.hop_limit, .traffic_class = a->ah_attr.grh.traffic_class,
			.dlid = a->ah_attr.dlid, .src_path_bits = a->ah_attr.src_path_bits, .static_rate = a->ah_attr.static_rate,
			.is_global = a->ah_attr.is_global, .port_num = a->ah_attr.port_num,
		},
	};
	memcpy(r.dest.dgid, a->ah_attr.grh.dgid, sizeof r.dest.dgid);
	return answer(c, &r, sizeof r);
}

static int destroy_qp(struct call *c)
{
	struct ib_uverbs_destroy_qp q;
	TAKE(c, q);
	struct opened_qp *h = find_object(c->file, OPENED_QP, q.qp_handle);
	struct qp *qp = h ? h->qp : find_object(c->file, QP, q.qp_handle);
	if (!qp)
		return ENOENT;
	struct ib_uverbs_destroy_qp_resp r = {.events_reported = h ? h->async_sent : qp->async_sent};
	r.events_reported -= drop_unread(&c->file->async, sizeof(struct ib_uverbs_async_event_desc),
		h ? h->user : qp->user);
	answer(c, &r, sizeof r);
	if (h) {
		release_opened_qp(h);
		return 0;
	}
	if (recording())
		record_qp(qp);
	release_qp(qp);
	return 0;
}

const struct command queue_commands[] = {
	{IB_USER_VERBS_CMD_CREATE_QP, create_qp},
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_CREATE_QP, create_qp_ex},
	{IB_USER_VERBS_CMD_MODIFY_QP, modify_qp},
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_MODIFY_QP, modify_qp_ex},
	{IB_USER_VERBS_CMD_QUERY_QP, query_qp},
	{IB_USER_VERBS_CMD_DESTROY_QP, destroy_qp},
	{IB_USER_VERBS_CMD_OPEN_QP, open_qp},
	{0, NULL},
};
