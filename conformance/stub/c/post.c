// SPDX-License-Identifier: BSD-2-Clause

/* Builds lists of work requests from plain values like a C program, and posts them through the header's inline
 * functions. */
#include <arpa/inet.h>

#include "stub.h"

enum { MAX_SGE = 32 };
enum extra { EXTRA_NONE, EXTRA_IMM, EXTRA_INVALIDATE };
enum arm { ARM_NONE, ARM_RDMA, ARM_ATOMIC, ARM_UD };
enum tail { TAIL_NONE, TAIL_BIND, TAIL_TSO };

struct recipe { /* the Go side has the same structure */
	uint64_t wr_id;
	uint32_t opcode, flags;
	uint32_t extra, arm, xrc, tail;
	uint32_t imm; /* in host byte order; or the key to invalidate */
	uint32_t rkey;
	uint64_t remote_addr, compare_add, swap;
	uint64_t ah;
	uint32_t remote_qpn, remote_qkey;
	uint32_t srqn, mw_rkey;
	uint64_t mw, mr, bind_addr, bind_length;
	uint32_t bind_access, mss;
	uint64_t hdr;
	uint32_t hdr_sz, num_sge;
	uint64_t list; /* sg_list is set without SGEs */
	struct { uint64_t addr; uint32_t length, lkey; } sge[MAX_SGE];
};

static struct ibv_sge *fill_sges(const struct recipe *r, struct ibv_sge *sge)
{
	for (uint32_t i = 0; i < r->num_sge; i++) {
		sge[i].addr = r->sge[i].addr;
		sge[i].length = r->sge[i].length;
		sge[i].lkey = r->sge[i].lkey;
	}
	return sge + r->num_sge;
}

static void fill_send(const struct recipe *r, struct ibv_send_wr *wr)
{
	wr->wr_id = r->wr_id;
	wr->num_sge = r->num_sge;
	wr->opcode = r->opcode;
	wr->send_flags = r->flags;
	switch ((enum extra)r->extra) {
	case EXTRA_NONE: break;
	case EXTRA_IMM: wr->imm_data = htonl(r->imm); break;
	case EXTRA_INVALIDATE: wr->invalidate_rkey = r->imm; break;
	}
	switch ((enum arm)r->arm) {
	case ARM_NONE:
		break;
	case ARM_RDMA:
		wr->wr.rdma.remote_addr = r->remote_addr;
		wr->wr.rdma.rkey = r->rkey;
		break;
	case ARM_ATOMIC:
		wr->wr.atomic.remote_addr = r->remote_addr;
		wr->wr.atomic.compare_add = r->compare_add;
		wr->wr.atomic.swap = r->swap;
		wr->wr.atomic.rkey = r->rkey;
		break;
	case ARM_UD:
		wr->wr.ud.ah = (struct ibv_ah *)(uintptr_t)r->ah;
		wr->wr.ud.remote_qpn = r->remote_qpn;
		wr->wr.ud.remote_qkey = r->remote_qkey;
		break;
	}
	if (r->xrc)
		wr->qp_type.xrc.remote_srqn = r->srqn;
	switch ((enum tail)r->tail) {
	case TAIL_NONE:
		break;
	case TAIL_BIND:
		wr->bind_mw.mw = (struct ibv_mw *)(uintptr_t)r->mw;
		wr->bind_mw.rkey = r->mw_rkey;
		wr->bind_mw.bind_info.mr = (struct ibv_mr *)(uintptr_t)r->mr;
		wr->bind_mw.bind_info.addr = r->bind_addr;
		wr->bind_mw.bind_info.length = r->bind_length;
		wr->bind_mw.bind_info.mw_access_flags = r->bind_access;
		break;
	case TAIL_TSO:
		wr->tso.hdr = (void *)(uintptr_t)r->hdr;
		wr->tso.hdr_sz = r->hdr_sz;
		wr->tso.mss = r->mss;
		break;
	}
}

/* The index of the bad work request, -1 for NULL, -2 if unchanged. */
static int64_t bad_index(const void *bad, const void *first, size_t size)
{
	if (bad == &stub_log)
		return -2;
	return bad ? ((const uint8_t *)bad - (const uint8_t *)first) / (int64_t)size : -1;
}

struct post { /* the Go side has the same structure */
	uint64_t object;
	const struct recipe *recipes;
	uint64_t count;
	void *memory; /* zero; for work requests, and SGEs behind them */
	int64_t result, error, bad;
};

void stub_post_send(struct post *p);
void stub_post_send(struct post *p)
{
	struct ibv_send_wr *wr = p->memory, *bad = (void *)&stub_log;
	struct ibv_sge *sge = (struct ibv_sge *)(wr + p->count);

	for (uint64_t i = 0; i < p->count; i++) {
		fill_send(&p->recipes[i], &wr[i]);
		wr[i].next = i + 1 < p->count ? &wr[i + 1] : NULL;
		wr[i].sg_list = p->recipes[i].num_sge || p->recipes[i].list ? sge : NULL;
		sge = fill_sges(&p->recipes[i], sge);
	}
	errno = 0;
	p->result = ibv_post_send((struct ibv_qp *)(uintptr_t)p->object, wr, &bad);
	p->error = errno;
	p->bad = bad_index(bad, wr, sizeof(*wr));
}

static struct ibv_recv_wr *fill_recvs(struct post *p)
{
	struct ibv_recv_wr *wr = p->memory;
	struct ibv_sge *sge = (struct ibv_sge *)(wr + p->count);

	for (uint64_t i = 0; i < p->count; i++) {
		wr[i].wr_id = p->recipes[i].wr_id;
		wr[i].num_sge = p->recipes[i].num_sge;
		wr[i].next = i + 1 < p->count ? &wr[i + 1] : NULL;
		wr[i].sg_list = p->recipes[i].num_sge || p->recipes[i].list ? sge : NULL;
		sge = fill_sges(&p->recipes[i], sge);
	}
	return wr;
}

void stub_post_recv(struct post *p);
void stub_post_recv(struct post *p)
{
	struct ibv_recv_wr *wr = fill_recvs(p), *bad = (void *)&stub_log;

	errno = 0;
	p->result = ibv_post_recv((struct ibv_qp *)(uintptr_t)p->object, wr, &bad);
	p->error = errno;
	p->bad = bad_index(bad, wr, sizeof(*wr));
}

void stub_post_srq_recv(struct post *p);
void stub_post_srq_recv(struct post *p)
{
	struct ibv_recv_wr *wr = fill_recvs(p), *bad = (void *)&stub_log;

	errno = 0;
	p->result = ibv_post_srq_recv((struct ibv_srq *)(uintptr_t)p->object, wr, &bad);
	p->error = errno;
	p->bad = bad_index(bad, wr, sizeof(*wr));
}
