// SPDX-License-Identifier: BSD-2-Clause

// Processing of requests: looks up keys, moves data between queue pairs of this process, acknowledges, and completes.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport.h"

uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

// Completions and events

static void notify(struct cq *cq)
{
	if (!cq->channel || !driver->take_request(cq))
		return;
	struct ib_uverbs_comp_event_desc event = {.cq_handle = cq->user};
	if (send_event(&cq->channel->events, &event, sizeof event))
		cq->comp_sent++;
}

void complete(struct cq *cq, const struct completion *c)
{
	if (cq->overrun)
		return;
	if (driver->complete(cq, c)) {
		notify(cq);
		return;
	}
	cq->overrun = true;
	async_event(cq->o.file, IBV_EVENT_CQ_ERR, cq->user, &cq->async_sent);
}

static void complete_send(struct qp *qp, const struct request *r, enum status status, uint32_t length)
{
	struct completion c = {.qp = qp, .status = status, .request = r, .length = length};
	count(qp, r->operation == OP_READ ? READS_DONE : r->operation == OP_WRITE ? WRITES_DONE : SENDS, status == OK);
	if (status != OK || r->signaled || qp->all_signaled)
		complete(qp->send_cq, &c);
}

static void complete_receive(struct qp *qp, struct qp *from, const struct receive *r, const struct request *request,
	enum status status, uint32_t length, const uint8_t *inside, const struct tagged *tagged)
{
	struct completion c = {
		.qp = qp, .status = status, .request = request, .receive = r, .from = from, .length = length, .inside = inside,
		.global = qp->type == IBV_QPT_UD, .tagged = status == OK ? tagged : NULL,
	};
	if (!r->unsolicited)
		driver->consume_receive(qp, r);
	count(qp, RECEIVES, status == OK);
	complete(qp->recv_cq, &c);
}

void fail_qp(struct qp *qp)
{
	if (qp->attr.qp_state == IBV_QPS_ERR)
		return;
	drop_waiting(qp);
	qp->attr.qp_state = qp->attr.cur_qp_state = IBV_QPS_ERR;
	if (qp->srq && !qp->xrcd)
		qp_event(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

// The responder

static bool receiving(const struct qp *qp)
{
	return qp && (qp->attr.qp_state == IBV_QPS_RTR || qp->attr.qp_state == IBV_QPS_RTS);
}

static bool reliable(const struct qp *qp)
{
	return qp->type == IBV_QPT_RC || qp->type == IBV_QPT_XRC_SEND || qp->type == IBV_QPT_XRC_RECV || qp->dynamic;
}

// reliable_datagram: each request has its own destination and is acknowledged.
static bool reliable_datagram(const struct qp *qp) { return qp->type == IBV_QPT_DRIVER && !qp->dynamic; }

static bool datagram(const struct qp *qp) { return qp->type == IBV_QPT_UD || reliable_datagram(qp); }

static struct qp *peer_of(const struct qp *qp, const struct request *r)
{
	struct qp *peer = r->elsewhere ? NULL : find_qp(datagram(qp) || qp->dynamic ? r->to_qp : qp->attr.dest_qp_num);
	if (!receiving(peer) || peer->type != (qp->type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : qp->type))
		return NULL;
	if (qp->dynamic)
		return peer->dynamic == TARGET ? peer : NULL;
	if (!datagram(qp))
		return peer->attr.dest_qp_num == qp->number ? peer : NULL;
	uint32_t key = r->to_key & 0x80000000 ? qp->attr.qkey : r->to_key;
	return key == peer->attr.qkey ? peer : NULL;
}

// refused handles a request that the peer may not execute: the peer fails and raises an event, unless it is the target
// of other initiators.
enum status refused(struct qp *peer, enum status status)
{
	if (reliable(peer) && !peer->dynamic) {
		qp_event(peer, status == REMOTE_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
		fail_qp(peer);
	}
	return status;
}

static bool permits(const struct qp *peer, uint32_t access)
{
	return reliable_datagram(peer) || peer->attr.qp_access_flags & access; // for datagrams, only the region has access flags
}

// land stores received data in the buffer of the next receive.
enum status land(struct qp *peer, struct qp *qp, const struct request *r, const struct memory *payload,
	const struct tagged *tagged)
{
	enum { GLOBAL_ROUTE_HEADER = 40 };
	struct receive receive = {0};
	struct memory to = {0};
	if (!driver->next_receive(peer, &receive))
		return AGAIN;
	uint64_t skip = peer->type == IBV_QPT_UD ? GLOBAL_ROUTE_HEADER : 0;
	bool found = open_all(&to, peer, receive.piece, receive.pieces, IBV_ACCESS_LOCAL_WRITE);
	enum status status = !found ? LOCAL_PROTECTION : to.total < payload->total + skip ? LOCAL_LENGTH : OK;
	if ((peer->type == IBV_QPT_UD || peer->type == IBV_QPT_RAW_PACKET) && status != OK)
		return DROPPED; // the receive remains posted
	if (r->with_invalidate && !invalidate(peer, r->immediate))
		return refused(peer, REMOTE_ACCESS);
	uint8_t inside[64];
	bool small = status == OK && payload->total && payload->total <= peer->scatter;
	if (small) {
		to = (struct memory){0};
		add(&to, inside, sizeof inside);
	}
	if (status == OK)
		move(&to, skip, payload, payload->total);
	complete_receive(peer, qp, &receive, r, status, payload->total + skip, small ? inside : NULL, tagged);
	if (status == OK)
		return OK;
	if (!driver->scalable && !peer->dynamic)
		fail_qp(peer);
	return found ? REMOTE_INVALID : REMOTE_OPERATION;
}

static enum status land_plainly(struct qp *peer, struct qp *qp, const struct request *r, const struct memory *payload)
{
	return land(peer, qp, r, payload, NULL);
}

static enum status write_remote(struct qp *peer, struct qp *qp, const struct request *r, const struct memory *payload)
{
	struct memory to = {0};
	if (!permits(peer, IBV_ACCESS_REMOTE_WRITE))
		return refused(peer, REMOTE_INVALID);
	if (payload->total && !open_memory(&to, peer, r->remote, payload->total, r->remote_key, IBV_ACCESS_REMOTE_WRITE))
		return refused(peer, REMOTE_ACCESS);
	struct receive receive = {.unsolicited = peer->unsolicited};
	if (r->with_immediate && !receive.unsolicited && !driver->next_receive(peer, &receive))
		return AGAIN;
	move(&to, 0, payload, payload->total);
	count(peer, WRITES_SERVED, true);
	if (r->with_immediate)
		complete_receive(peer, qp, &receive, r, OK, payload->total, NULL, NULL);
	return OK;
}

static enum status read_remote(struct qp *peer, const struct request *r, const struct memory *local)
{
	struct memory from = {0};
	if (!permits(peer, IBV_ACCESS_REMOTE_READ))
		return refused(peer, REMOTE_INVALID);
	if (local->total && !open_memory(&from, peer, r->remote, local->total, r->remote_key, IBV_ACCESS_REMOTE_READ))
		return refused(peer, REMOTE_ACCESS);
	move(local, 0, &from, local->total);
	count(peer, READS_SERVED, true);
	return OK;
}

static enum status atomic_remote(struct qp *peer, const struct request *r, const struct memory *local)
{
	struct memory at = {0};
	if (!(peer->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) || r->remote & 7)
		return refused(peer, REMOTE_INVALID);
	if (!open_memory(&at, peer, r->remote, 8, r->remote_key, IBV_ACCESS_REMOTE_ATOMIC))
		return refused(peer, REMOTE_ACCESS);
	uint64_t *word = (uint64_t *)at.part[0].p, before = r->compare;
	if (r->operation == OP_FETCH_ADD)
		before = __atomic_fetch_add(word, r->swap, __ATOMIC_SEQ_CST);
	else
		__atomic_compare_exchange_n(word, &before, r->swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	struct memory answer = {0};
	add(&answer, &before, sizeof before);
	move(local, 0, &answer, sizeof before);
	return OK;
}

// The requester

static bool wants_write(const struct request *r) { return r->operation >= OP_READ && r->operation <= OP_FETCH_ADD; }

static bool possible(const struct qp *qp, const struct request *r)
{
	if (r->operation == OP_NONE || r->operation == OP_UNKNOWN)
		return r->operation == OP_NONE;
	if (r->operation == OP_TAGS)
		return qp->srq && qp->srq->tags;
	if (qp->type == IBV_QPT_UD || qp->type == IBV_QPT_RAW_PACKET)
		return r->operation == OP_SEND;
	return qp->type == IBV_QPT_UC ? !wants_write(r) : !reliable_datagram(qp) || r->operation <= OP_READ;
}

enum status carry_out(struct qp *qp, const struct request *r, uint32_t *length)
{
	struct memory local = {0};
	*length = 0;
	if (!possible(qp, r))
		return LOCAL_OPERATION;
	if (r->operation == OP_NONE)
		return OK;
	if (r->operation == OP_TAGS)
		return change_tags(qp, r);
	if (r->operation == OP_BIND)
		return r->binding.length || !r->with_invalidate ? bind_window(qp, &r->binding) ? OK : WINDOW :
			invalidate(qp, r->binding.key) ? OK : WINDOW;
	if (r->inlined)
		add(&local, (void *)r->data, r->inlined);
	if (!open_all(&local, qp, r->piece, r->pieces, wants_write(r) ? IBV_ACCESS_LOCAL_WRITE : 0))
		return LOCAL_PROTECTION;
	*length = local.total;
	if (qp->type == IBV_QPT_RAW_PACKET)
		return send_packets(qp, r, &local);
	bool atomic = r->operation == OP_COMPARE_SWAP || r->operation == OP_FETCH_ADD;
	if (atomic && local.total != 8 || datagram(qp) && r->operation == OP_SEND && local.total > driver->datagram)
		return LOCAL_LENGTH;
	struct qp *peer = peer_of(qp, r);
	if (!peer)
		return qp->type == IBV_QPT_UC || qp->type == IBV_QPT_UD ? DROPPED : reliable(qp) || r->elsewhere ? RETRIES : NOBODY;
	if (r->operation != OP_SEND && driver->knows && !driver->knows(peer->pd))
		return STRANGER;
	if (peer->xrcd && !aim(peer, r->to_srq))
		return refused(peer, REMOTE_INVALID);
	if (qp->dynamic && r->access_key != peer->access_key)
		return REMOTE_ACCESS;
	if (peer->attr.qp_state == IBV_QPS_RTR && !peer->dynamic && !peer->established) {
		peer->established = true;
		qp_event(peer, IBV_EVENT_COMM_EST);
	}
	switch (r->operation) {
	case OP_SEND: return (peer->srq && peer->srq->tags ? land_tagged : land_plainly)(peer, qp, r, &local);
	case OP_WRITE: return write_remote(peer, qp, r, &local);
	case OP_READ: return read_remote(peer, r, &local);
	default: return atomic_remote(peer, r, &local);
	}
}

// RNR timers by code, in microseconds.
static const uint32_t rnr_timers[32] = {
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360,
	20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
};

// retry_time returns how long a request is retried before it fails; 0 is unlimited.
static uint64_t retry_time(const struct qp *qp, enum status status)
{
	if (status == RETRIES)
		return qp->attr.timeout ? (uint64_t)((4.096 * (1ull << qp->attr.timeout)) * (qp->attr.retry_cnt + 1)) + 1 : 0;
	const struct qp *peer = find_qp(qp->attr.dest_qp_num);
	return qp->attr.rnr_retry == 7 ? 0 : (uint64_t)rnr_timers[peer ? peer->attr.min_rnr_timer & 31 : 1] *
		qp->attr.rnr_retry + 1;
}

// may_retry reports whether to retry the request at the head.
bool may_retry(struct qp *qp, enum status status)
{
	uint64_t most = retry_time(qp, status);
	if (!qp->deadline)
		qp->deadline = now() + most;
	return !most || now() < qp->deadline;
}

// Reliable datagrams are unordered: while one waits for its receiver, later ones proceed.
struct waiting {
	struct waiting *next;
	uint64_t deadline; // 0 is unlimited
	struct request request;
};

static bool set_aside(struct qp *qp, const struct request *r)
{
	enum { FOR_EVER = 7, RETRY = 1000 };
	struct waiting *w = qp->attr.rnr_retry ? malloc(sizeof *w) : NULL;
	if (!w)
		return false;
	w->next = NULL, w->request = *r;
	w->deadline = qp->attr.rnr_retry == FOR_EVER ? 0 : now() + qp->attr.rnr_retry * RETRY;
	struct waiting **at = &qp->waiting;
	while (*at)
		at = &(*at)->next;
	*at = w;
	return true;
}

static void end_waiting(struct waiting **at)
{
	struct waiting *w = *at;
	*at = w->next;
	free(w);
}

// settle completes a request.
static void settle(struct qp *qp, const struct request *r, enum status status, uint32_t length)
{
	bool answered = reliable(qp) || reliable_datagram(qp);
	if (status == AGAIN)
		status = RNR_RETRIES;
	if (status == DROPPED || !answered && (status >= REMOTE_INVALID && status <= REMOTE_OPERATION))
		status = OK; // an unreliable transport has no acknowledgements
	complete_send(qp, r, status, length);
	if (status != OK && !driver->scalable)
		fail_qp(qp);
}

static void run_waiting(struct qp *qp)
{
	for (struct waiting **at = &qp->waiting; *at && qp->attr.qp_state == IBV_QPS_RTS;) {
		const struct request *r = &(*at)->request;
		uint32_t length;
		enum status status = carry_out(qp, r, &length);
		if (status == AGAIN && (!(*at)->deadline || now() < (*at)->deadline)) {
			at = &(*at)->next;
			continue;
		}
		settle(qp, r, status, length);
		end_waiting(at);
	}
}

// drop_waiting flushes the waiting requests, or discards them if no queue remains for their completions.
void drop_waiting(struct qp *qp)
{
	while (qp->waiting) {
		if (qp->attr.qp_state != IBV_QPS_RESET)
			complete_send(qp, &qp->waiting->request, FLUSHED, 0);
		end_waiting(&qp->waiting);
	}
	drop_rendezvous(qp);
}

static void run_send(struct qp *qp)
{
	struct request r;
	while (qp->attr.qp_state == IBV_QPS_RTS && driver->next_send(qp, &r)) {
		uint32_t length;
		enum status status = carry_out(qp, &r, &length);
		if (status == AGAIN && !reliable(qp) && !reliable_datagram(qp))
			status = DROPPED;
		if (reliable(qp) && (status == AGAIN || status == RETRIES) && may_retry(qp, status))
			return;
		qp->deadline = 0;
		qp->sq_head += r.blocks;
		if (status != AGAIN || !reliable_datagram(qp) || !set_aside(qp, &r))
			settle(qp, &r, status, length);
	}
}

static void flush(struct qp *qp)
{
	struct request r;
	struct receive receive = {0};
	while (driver->next_send(qp, &r)) {
		qp->sq_head += r.blocks;
		complete_send(qp, &r, FLUSHED, 0);
	}
	while (!qp->srq && driver->next_receive(qp, &receive))
		complete_receive(qp, NULL, &receive, NULL, FLUSHED, 0, NULL, NULL);
}

static void run_queue(void *o)
{
	struct qp *qp = o;
	if (qp->waiting)
		run_waiting(qp);
	if (run_rendezvous(qp))
		run_send(qp);
	if (qp->attr.qp_state == IBV_QPS_ERR)
		flush(qp);
}

static void notify_queue(void *o) { notify(o); }

void run_queues(void)
{
	if (still())
		return;
	each(QP, run_queue);
	each(QP, run_queue); // a later queue pair may have failed an earlier one
	each(CQ, notify_queue);
}
