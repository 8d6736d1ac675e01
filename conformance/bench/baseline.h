/* The loops of an ordinary C program, the baseline for every other implementation. */
#ifndef GOVERBS_BENCH_BASELINE_H
#define GOVERBS_BENCH_BASELINE_H

#include "stub.h"

/* Data of work requests: work request k of list i is for the bytes at addr + (i + k) * length. */
struct work {
	uint64_t addr, remote_addr;
	uint32_t length, lkey, rkey;
};

struct baseline {
	struct ibv_qp **qp;
	unsigned int mask; /* maps the number of a round to a queue pair: queue pairs - 1 */
	int batch;         /* work requests per list, or completions per poll */
	struct ibv_send_wr *wr;
	struct ibv_sge *sge;
	struct ibv_cq *cq;
	struct ibv_wc *wc;
	struct work work;
	uint64_t sum; /* checksum of values read from completions */
};

enum baseline_case { CASE_CALL, CASE_BUILD, CASE_PATCH, CASE_POLL };

struct baseline *baseline_new(struct stub *s, struct ibv_cq *cq, int qps, int batch, struct work work);

/* Runs a case n times on every baseline concurrently, each on a thread, one of them the caller's. Returns the nanoseconds
 * from the first start to the last end, or -1 if a call failed. */
int64_t baseline_run(struct baseline **b, int threads, enum baseline_case which, long n);

#endif
