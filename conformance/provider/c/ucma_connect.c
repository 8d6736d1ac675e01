// SPDX-License-Identifier: BSD-2-Clause

// Connections: the states of InfiniBand's communication management (volume 1, chapter 12), and the queue pair
// attributes for them. Messages are neither lost nor delayed, so there are no retransmissions or timeouts, and a
// connection ends as soon as both ends have disconnected.
#include <stdlib.h>
#include <string.h>

#include "ucma.h"

enum { INVALID_SERVICE = 8, CONSUMER = 28 }; // reasons of a rejection
enum { REQ_ROOM = 56, REP_ROOM = 196, REJ_ROOM = 148 }; // bytes of private data
enum { ACK_TIMEOUT = 18, HOPS = 64 };

static void set_message(struct cm_id *id, const struct rdma_ucm_conn_param *p, struct rdma_ucm_ece ece, size_t room)
{
	id->said = (struct cm_message){.param = *p, .ece = ece, .psn = id->psn};
	size_t length = p->private_data_len;
	memset(id->said.param.private_data + length, 0, sizeof p->private_data - length);
	id->said.param.private_data_len = room; // truncated to the message's size
}

// deliver delivers a message to an ID. The initiator depth of the sender becomes the responder resources of the receiver.
static void deliver(struct cm_id *id, const struct cm_message *m)
{
	id->heard = *m;
	id->heard.param.responder_resources = m->param.initiator_depth;
	id->heard.param.initiator_depth = m->param.responder_resources;
}

static struct cm_id *part(struct cm_id *id)
{
	struct cm_id *peer = id->peer;
	id->peer = NULL;
	if (peer)
		peer->peer = NULL;
	return peer;
}

static void reject(struct cm_id *id, int32_t reason, const uint8_t *data, size_t size)
{
	struct cm_message m = {.param.private_data_len = REJ_ROOM};
	if (size)
		memcpy(m.param.private_data, data, size);
	id->state = CM_OVER;
	queue_event(id, REJECTED, reason, &m);
}

static void disconnected(struct cm_id *id)
{
	id->state = CM_DREQ_RCVD;
	queue_event(id, DISCONNECTED, 0, NULL);
}

// finish_disconnect: the other end has disconnected, too.
static void finish_disconnect(struct cm_id *id)
{
	id->state = CM_OVER;
	queue_event(id, DISCONNECTED, 0, NULL);
	queue_event(id, TIMEWAIT_EXIT, 0, NULL);
}

void end_connection(struct cm_id *id)
{
	struct cm_id *peer = part(id);
	if (!peer)
		return;
	switch (id->state) {
	case CM_REQ_SENT: peer->state = CM_OVER; break; // without an event
	case CM_REQ_RCVD: case CM_REP_SENT: case CM_REP_RCVD: reject(peer, CONSUMER, NULL, 0); break;
	case CM_ESTABLISHED: disconnected(peer); break;
	case CM_DREQ_RCVD: finish_disconnect(peer); break;
	default: break;
	}
}

int cm_connect(struct cm_call *c)
{
	struct rdma_ucm_connect q = {0};
	if (c->in_size < offsetof(struct rdma_ucm_connect, ece))
		return EINVAL;
	memcpy(&q, c->in, c->in_size < sizeof q ? c->in_size : sizeof q); // old libraries do not support ECE
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id || id->state != CM_ROUTE || q.conn_param.private_data_len > REQ_ROOM)
		return id ? EINVAL : ENOENT;
	set_message(id, &q.conn_param, q.ece, REQ_ROOM);
	id->state = CM_REQ_SENT, id->active = true;
	struct cm_id *listener = listener_of(id);
	bool room = listener && unread_requests(listener) < listener->backlog;
	struct cm_id *child = room ? new_cm_id(listener->file) : NULL;
	if (!child) {
		reject(id, listener ? CONSUMER : INVALID_SERVICE, NULL, 0);
		return 0;
	}
	child->space = id->space, child->type = id->type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : id->type;
	child->from = id->to, child->to = id->from, child->gid = id->gid;
	child->state = CM_REQ_RCVD;
	child->peer = id, id->peer = child;
	deliver(child, &id->said);
	tell_request(listener, child);
	return 0;
}

// answer_request is a reply to a request.
static int answer_request(struct cm_id *id, const struct rdma_ucm_accept *q)
{
	if (id->state != CM_REQ_RCVD || q->conn_param.private_data_len > REP_ROOM)
		return EINVAL;
	id->uid = q->uid;
	set_message(id, &q->conn_param, q->ece, REP_ROOM);
	id->said.param.retry_count = 0; // a reply has no retry count
	id->state = CM_REP_SENT;
	struct cm_id *peer = id->peer;
	deliver(peer, &id->said);
	peer->state = CM_REP_RCVD;
	queue_event(peer, CONNECT_RESPONSE, 0, &peer->heard);
	return 0;
}

int cm_accept(struct cm_call *c)
{
	struct rdma_ucm_accept q = {0};
	if (c->in_size < offsetof(struct rdma_ucm_accept, ece))
		return EINVAL;
	memcpy(&q, c->in, c->in_size < sizeof q ? c->in_size : sizeof q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	if (q.conn_param.valid)
		return answer_request(id, &q);
	if (id->state != CM_REP_RCVD)
		return EINVAL;
	id->state = CM_ESTABLISHED;
	if (id->peer->state == CM_REP_SENT) { // no RTU yet
		id->peer->state = CM_ESTABLISHED;
		queue_event(id->peer, ESTABLISHED, 0, NULL);
	}
	return 0;
}

int cm_notify(struct cm_call *c)
{
	struct rdma_ucm_notify q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id || q.event != IBV_EVENT_COMM_EST)
		return id ? EINVAL : ENOENT;
	if (id->state != CM_REP_SENT)
		return id->state == CM_ESTABLISHED ? EISCONN : EINVAL;
	id->state = CM_ESTABLISHED;
	queue_event(id, ESTABLISHED, 0, NULL);
	return 0;
}

int cm_reject(struct cm_call *c)
{
	struct rdma_ucm_reject q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id || id->state != CM_REQ_RCVD && id->state != CM_REP_RCVD || q.private_data_len > REJ_ROOM)
		return id ? EINVAL : ENOENT;
	id->state = CM_OVER;
	reject(part(id), q.reason ? q.reason : CONSUMER, q.private_data, q.private_data_len);
	return 0;
}

int cm_disconnect(struct cm_call *c)
{
	struct rdma_ucm_disconnect q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id), *peer;
	if (!id || id->state < CM_REQ_SENT)
		return id ? EINVAL : ENOENT;
	switch (id->state) {
	case CM_ESTABLISHED:
		id->state = CM_DREQ_SENT;
		disconnected(id->peer);
		break;
	case CM_DREQ_RCVD:
		id->state = CM_OVER;
		queue_event(id, TIMEWAIT_EXIT, 0, NULL);
		if ((peer = part(id)))
			finish_disconnect(peer);
		break;
	default:
		break; // no message
	}
	return 0;
}

// Attributes

static void for_init(const struct cm_id *id, struct ib_uverbs_qp_attr *a)
{
	a->qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	a->port_num = 1;
	if (id->state >= CM_REQ_SENT)
		a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	if (id->heard.param.responder_resources || id->said.param.responder_resources)
		a->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
}

static void for_rtr(const struct cm_id *id, struct ib_uverbs_qp_attr *a)
{
	a->qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (id->type != IBV_QPT_XRC_SEND)
		a->qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	a->path_mtu = driver->port->active_mtu;
	a->dest_qp_num = id->heard.param.qp_num, a->rq_psn = id->heard.psn;
	a->max_dest_rd_atomic = id->heard.param.responder_resources;
	a->ah_attr.is_global = 1, a->ah_attr.port_num = 1;
	a->ah_attr.grh.sgid_index = id->gid, a->ah_attr.grh.hop_limit = HOPS, a->ah_attr.grh.traffic_class = id->tos;
	memcpy(a->ah_attr.grh.dgid, driver->gids[id->gid].raw, sizeof a->ah_attr.grh.dgid); // the only device
}

static void for_rts(const struct cm_id *id, struct ib_uverbs_qp_attr *a)
{
	const struct rdma_ucm_conn_param *request = id->active ? &id->said.param : &id->heard.param;
	a->qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
	if (id->type != IBV_QPT_XRC_RECV)
		a->qp_attr_mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	a->sq_psn = id->psn;
	a->timeout = id->timeout_said ? id->timeout : ACK_TIMEOUT;
	a->retry_cnt = request->retry_count, a->rnr_retry = id->heard.param.rnr_retry_count;
	a->max_rd_atomic = id->heard.param.initiator_depth;
}

int cm_init_qp_attr(struct cm_call *c)
{
	struct rdma_ucm_init_qp_attr q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	bool known = id->state >= CM_REQ_RCVD && id->state <= CM_ESTABLISHED; // the other end is known
	struct ib_uverbs_qp_attr a = {.qp_state = q.qp_state};
	if (id->gid < 0 || id->state > CM_ESTABLISHED)
		return EINVAL;
	if (q.qp_state == IBV_QPS_INIT)
		for_init(id, &a);
	else if (q.qp_state == IBV_QPS_RTR && known)
		for_rtr(id, &a);
	else if (q.qp_state == IBV_QPS_RTS && known)
		for_rts(id, &a);
	else
		return EINVAL;
	return cm_answer(q.response, c->out_size, &a, sizeof a);
}
