/* The loops of an ordinary C program, which every other implementation is compared with. */
#ifndef GOVERBS_BENCH_BASELINE_H
#define GOVERBS_BENCH_BASELINE_H

#include "stub.h"

/* What is written: work request k of list i is for the bytes at addr + (i + k) * length. */
struct work {
	uint64_t addr, remote_addr;
	uint32_t length, lkey, rkey;
};

struct baseline {
	struct ibv_qp **qp;
	unsigned int mask; /* of the number of a round to the queue pair that takes it: queue pairs - 1 */
	int batch;         /* work requests of a list, or completions of a poll */
	struct ibv_send_wr *wr;
	struct ibv_sge *sge;
	struct ibv_cq *cq;
	struct ibv_wc *wc;
	struct work work;
	uint64_t sum; /* of what was read from completions */
};

enum baseline_case { CASE_CALL, CASE_BUILD, CASE_PATCH, CASE_POLL };

struct baseline *baseline_new(struct stub *s, struct ibv_cq *cq, int qps, int batch, struct work work);

/* Does a case n times on every baseline at once, each on a thread of its own, one of them on the caller's. The result
 * is how many nanoseconds passed from the first start to the last end, or -1 when a call failed. */
int64_t baseline_run(struct baseline **b, int threads, enum baseline_case which, long n);

#endif
