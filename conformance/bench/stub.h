/* A device with minimal work: queue pairs and a completion queue whose slots are the functions of stub.c. */
#ifndef GOVERBS_BENCH_STUB_H
#define GOVERBS_BENCH_STUB_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>

enum stub_kind {
	STUB_RETURN,  /* post_send and poll_cq return immediately */
	STUB_WQE,     /* a 64-byte entry for each work request, a doorbell in memory for each list; the same for completions */
	STUB_CAPTURE, /* post_send keeps a copy of the list */
};

#define STUB_DEPTH 64 /* queue entries; maximum list length */

struct stub_wqe {
	uint32_t opcode, qp_num, flags, imm;
	uint64_t remote_addr;
	uint32_t rkey, num_sge;
	uint64_t addr;
	uint32_t length, lkey;
	uint64_t wr_id, end;
};

struct stub_cqe {
	uint64_t wr_id;
	uint32_t status, opcode, byte_len, qp_num;
	uint8_t rest[40];
};

struct stub_qp {
	struct ibv_qp qp;
	pthread_spinlock_t lock;
	uint32_t head;
	uint32_t *doorbell;
	struct stub_wqe *entries;
} __attribute__((aligned(64)));

struct stub_cq {
	struct ibv_cq cq;
	pthread_spinlock_t lock;
	uint32_t available;
	uint32_t head;
	uint32_t *doorbell;
	struct stub_cqe *entries;
};

struct stub {
	enum stub_kind kind;
	struct ibv_context *context;
	struct ibv_qp **qp; /* qps of them */
	int qps;
};

/* The last list that STUB_CAPTURE saw. Addresses within the list are replaced by indices of work requests and SGEs,
 * from 1. */
struct stub_captured {
	int count;
	struct ibv_send_wr wr[STUB_DEPTH];
	struct ibv_sge sge[STUB_DEPTH];
};

extern struct stub_captured stub_captured;

struct stub *stub_open(enum stub_kind kind, int qps);

/* A completion queue in which every poll finds this number of completions. */
struct ibv_cq *stub_create_cq(struct stub *s, int available);

/* stub_lend replaces another device's context functions by ones that return immediately; each poll finds
 * stub_completion. */
extern struct ibv_wc stub_completion;
void stub_lend(struct ibv_context_ops *ops);

#endif
