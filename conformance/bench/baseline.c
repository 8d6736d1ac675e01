// SPDX-License-Identifier: BSD-2-Clause

#include "baseline.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS int call(struct baseline *b, long n, bool many)
{
	struct ibv_qp *qp = b->qp[0];
	struct ibv_send_wr *wr = b->wr, *bad;
	unsigned int mask = b->mask;

	for (long i = 0; i < n; i++) {
		if (many)
			qp = b->qp[i & mask];
		if (ibv_post_send(qp, wr, &bad))
			return -1;
	}
	return 0;
}

ALWAYS int build(struct baseline *b, long n, bool many)
{
	struct ibv_qp *qp = b->qp[0];
	struct ibv_send_wr *wr = b->wr, *bad;
	struct ibv_sge *sge = b->sge;
	const struct work w = b->work;
	unsigned int mask = b->mask;
	int batch = b->batch;

	for (long i = 0; i < n; i++) {
		uint64_t offset = (uint64_t)i * w.length;

		if (many)
			qp = b->qp[i & mask];
		for (int k = 0; k < batch; k++) {
			bool last = k + 1 == batch;

			sge[k].addr = w.addr + offset;
			sge[k].length = w.length;
			sge[k].lkey = w.lkey;
			wr[k].wr_id = i + k;
			wr[k].next = last ? NULL : &wr[k + 1];
			wr[k].sg_list = &sge[k];
			wr[k].num_sge = 1;
			wr[k].opcode = IBV_WR_RDMA_WRITE;
			wr[k].send_flags = last ? IBV_SEND_SIGNALED : 0;
			wr[k].wr.rdma.remote_addr = w.remote_addr + offset;
			wr[k].wr.rdma.rkey = w.rkey;
			offset += w.length;
		}
		if (ibv_post_send(qp, wr, &bad))
			return -1;
	}
	return 0;
}

ALWAYS int patch(struct baseline *b, long n, bool many)
{
	struct ibv_qp *qp = b->qp[0];
	struct ibv_send_wr *wr = b->wr, *bad;
	struct ibv_sge *sge = b->sge;
	const struct work w = b->work;
	unsigned int mask = b->mask;
	int batch = b->batch;

	for (long i = 0; i < n; i++) {
		uint64_t offset = (uint64_t)i * w.length;

		if (many)
			qp = b->qp[i & mask];
		for (int k = 0; k < batch; k++) {
			sge[k].addr = w.addr + offset;
			wr[k].wr_id = i + k;
			wr[k].wr.rdma.remote_addr = w.remote_addr + offset;
			offset += w.length;
		}
		if (ibv_post_send(qp, wr, &bad))
			return -1;
	}
	return 0;
}

static int poll(struct baseline *b, long n)
{
	struct ibv_cq *cq = b->cq;
	struct ibv_wc *wc = b->wc;
	int batch = b->batch > 0 ? b->batch : 1;
	uint64_t sum = 0;

	for (long i = 0; i < n; i++) {
		int got = ibv_poll_cq(cq, batch, wc);

		if (got < 0)
			return -1;
		for (int k = 0; k < got; k++) {
			if (wc[k].status != IBV_WC_SUCCESS)
				return -1;
			sum += wc[k].wr_id + wc[k].byte_len + wc[k].opcode + wc[k].qp_num + wc[k].wc_flags;
		}
	}
	b->sum = sum;
	return 0;
}

static int rounds(struct baseline *b, enum baseline_case which, long n)
{
	switch (which) {
	case CASE_CALL:
		return b->mask ? call(b, n, true) : call(b, n, false);
	case CASE_BUILD:
		return b->mask ? build(b, n, true) : build(b, n, false);
	case CASE_PATCH:
		return b->mask ? patch(b, n, true) : patch(b, n, false);
	default:
		return poll(b, n);
	}
}

struct baseline *baseline_new(struct stub *s, struct ibv_cq *cq, int qps, int batch, struct work work)
{
	struct baseline *b = calloc(1, sizeof(*b));

	if (!b)
		abort();
	b->qp = s->qp;
	b->mask = qps - 1;
	b->batch = batch;
	b->cq = cq;
	b->work = work;
	/* one block: an array of work requests, then their SGEs */
	if (posix_memalign((void **)&b->wr, 4096, STUB_DEPTH * (sizeof(*b->wr) + sizeof(*b->sge) + sizeof(*b->wc))))
		abort();
	memset(b->wr, 0, STUB_DEPTH * (sizeof(*b->wr) + sizeof(*b->sge) + sizeof(*b->wc)));
	b->sge = (struct ibv_sge *)(b->wr + STUB_DEPTH);
	b->wc = (struct ibv_wc *)(b->sge + STUB_DEPTH);
	for (int i = 0; i < STUB_DEPTH; i++)
		b->wc[i] = (struct ibv_wc){.wr_id = i, .opcode = IBV_WC_RDMA_WRITE, .byte_len = work.length, .qp_num = 1};
	return b;
}

struct thread {
	pthread_t id;
	pthread_barrier_t *barrier;
	struct baseline *b;
	enum baseline_case which;
	long n;
	int result;
	int64_t start, end;
};

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *thread(void *argument)
{
	struct thread *t = argument;

	if (t->barrier)
		pthread_barrier_wait(t->barrier);
	t->start = now();
	t->result = rounds(t->b, t->which, t->n);
	t->end = now();
	return NULL;
}

int64_t baseline_run(struct baseline **b, int threads, enum baseline_case which, long n)
{
	struct thread t[threads];
	pthread_barrier_t barrier;
	int64_t start, end;

	pthread_barrier_init(&barrier, NULL, threads);
	for (int i = 0; i < threads; i++) {
		t[i] = (struct thread){.barrier = threads > 1 ? &barrier : NULL, .b = b[i], .which = which, .n = n};
		if (i && pthread_create(&t[i].id, NULL, thread, &t[i]))
			abort();
	}
	thread(&t[0]);
	for (int i = 1; i < threads; i++)
		pthread_join(t[i].id, NULL);
	pthread_barrier_destroy(&barrier);

	start = t[0].start;
	end = t[0].end;
	for (int i = 0; i < threads; i++) {
		if (t[i].result)
			return -1;
		start = t[i].start < start ? t[i].start : start;
		end = t[i].end > end ? t[i].end : end;
	}
	return end - start;
}
