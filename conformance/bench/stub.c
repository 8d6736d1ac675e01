// SPDX-License-Identifier: BSD-2-Clause

#include "stub.h"

#include <stdlib.h>
#include <string.h>

struct stub_captured stub_captured;

static int return_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

static int return_poll(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	struct stub_cq *q = (struct stub_cq *)cq;

	(void)wc;
	return (int)q->available < entries ? (int)q->available : entries;
}

static int wqe_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct stub_qp *q = (struct stub_qp *)qp;
	uint32_t head;

	(void)bad;
	pthread_spin_lock(&q->lock);
	for (head = q->head; wr; wr = wr->next, head++)
		q->entries[head % STUB_DEPTH] = (struct stub_wqe){
			.opcode = wr->opcode, .qp_num = qp->qp_num, .flags = wr->send_flags, .imm = wr->imm_data,
			.remote_addr = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey, .num_sge = wr->num_sge,
			.addr = wr->sg_list->addr, .length = wr->sg_list->length, .lkey = wr->sg_list->lkey,
			.wr_id = wr->wr_id, .end = head,
		};
	q->head = head;
	__atomic_store_n(q->doorbell, head, __ATOMIC_RELEASE);
	pthread_spin_unlock(&q->lock);
	return 0;
}

static int wqe_poll(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	struct stub_cq *q = (struct stub_cq *)cq;
	int i;

	pthread_spin_lock(&q->lock);
	for (i = 0; i < entries && i < (int)q->available; i++, q->head++) {
		const struct stub_cqe *e = &q->entries[q->head % STUB_DEPTH];

		wc[i].wr_id = e->wr_id;
		wc[i].status = e->status;
		wc[i].opcode = e->opcode;
		wc[i].byte_len = e->byte_len;
		wc[i].qp_num = e->qp_num;
		wc[i].wc_flags = 0;
	}
	if (i)
		__atomic_store_n(q->doorbell, q->head, __ATOMIC_RELEASE);
	pthread_spin_unlock(&q->lock);
	return i;
}

static int capture_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct stub_captured *c = &stub_captured;

	(void)qp, (void)bad;
	memset(c, 0, sizeof(*c));
	for (; wr && c->count < STUB_DEPTH; wr = wr->next, c->count++) {
		c->wr[c->count] = *wr;
		c->sge[c->count] = *wr->sg_list;
		c->wr[c->count].sg_list = (void *)(uintptr_t)(c->count + 1);
		c->wr[c->count].next = (void *)(uintptr_t)(wr->next ? c->count + 2 : 0);
	}
	return 0;
}

static void *zeroed(size_t size)
{
	void *p = aligned_alloc(64, (size + 63) & ~(size_t)63);

	if (!p)
		abort();
	return memset(p, 0, size);
}

struct stub *stub_open(enum stub_kind kind, int qps)
{
	struct stub *s = zeroed(sizeof(*s));

	s->kind = kind;
	s->context = zeroed(sizeof(*s->context));
	s->context->ops.post_send = kind == STUB_RETURN ? return_post : kind == STUB_WQE ? wqe_post : capture_post;
	s->context->ops.poll_cq = kind == STUB_WQE ? wqe_poll : return_poll;

	s->qps = qps;
	s->qp = zeroed(qps * sizeof(*s->qp));
	for (int i = 0; i < qps; i++) {
		struct stub_qp *q = zeroed(sizeof(*q));

		q->qp.context = s->context;
		q->qp.qp_num = i + 1;
		q->qp.state = IBV_QPS_RTS;
		q->qp.qp_type = IBV_QPT_RC;
		q->doorbell = zeroed(64);
		q->entries = zeroed(STUB_DEPTH * sizeof(struct stub_wqe));
		pthread_spin_init(&q->lock, PTHREAD_PROCESS_PRIVATE);
		s->qp[i] = &q->qp;
	}
	return s;
}

struct ibv_cq *stub_create_cq(struct stub *s, int available)
{
	struct stub_cq *q = zeroed(sizeof(*q));

	q->cq.context = s->context;
	q->cq.cqe = STUB_DEPTH;
	q->available = available;
	q->doorbell = zeroed(64);
	q->entries = zeroed(STUB_DEPTH * sizeof(struct stub_cqe));
	pthread_spin_init(&q->lock, PTHREAD_PROCESS_PRIVATE);
	for (int i = 0; i < STUB_DEPTH; i++)
		q->entries[i] = (struct stub_cqe){.wr_id = i, .opcode = IBV_WC_RDMA_WRITE, .byte_len = 64, .qp_num = 1};
	return &q->cq;
}

struct ibv_wc stub_completion;

/* A poll that always finds stub_completion if it has a queue pair. */
static int one_poll(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	(void)cq;
	if (entries < 1 || !stub_completion.qp_num)
		return 0;
	*wc = stub_completion;
	return 1;
}

void stub_lend(struct ibv_context_ops *ops)
{
	ops->post_send = return_post;
	ops->poll_cq = one_poll;
}
