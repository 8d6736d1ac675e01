// SPDX-License-Identifier: BSD-2-Clause

// Measures posting and polling: a thread makes the calls under seccomp, where any system call ends the process, on a
// stack that is painted before each call, and prints the stack depth of each. The argument is the kind of queue pair:
// rc, or EFA's ud or srd; posts for a reliable connection of an idle adapter; or error for its provider's behavior in
// ERR, which may include system calls, each between two port queries.
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

enum { SIZE = 256, ROUNDS = 200, STACK = 256 << 10, DEPTH = 64 << 10, PAINT = 0xa5, KEY = 7 };
enum { DEEP = 64, FEW = 24 }; // capacity of an idle queue, and requests posted to it
enum verb { SEND, INLINE, REFUSED, CALLS, RECV, SHARED, EMPTY, POLL, FAILED, NOTIFY, VERBS };

static const char *const names[VERBS] = {
	"ibv_post_send", "ibv_post_send of inline data", "ibv_post_send that is refused",
	"ibv_wr_start to ibv_wr_complete", "ibv_post_recv", "ibv_post_srq_recv", "ibv_poll_cq of an empty queue", "ibv_poll_cq",
	"ibv_poll_cq of a failed completion", "ibv_req_notify_cq",
};
static size_t deepest[VERBS];
static int wrong; // line of the first failure, which cannot be printed there

#define EXPECT(what) do { if (!(what) && !wrong) wrong = __LINE__; } while (0)

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_qp_ex *extended;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static struct ibv_srq *srq;
static bool efa, srd, posts, error;
static char memory[2 * SIZE];

// A call, with arguments that are not on the stack.
static struct ibv_wc wc;
static struct ibv_send_wr send_wr, *bad_send;
static struct ibv_recv_wr recv_wr, *bad_recv;
static int result;

static int calls(void)
{
	struct ibv_qp_ex *x = extended;
	const struct ibv_send_wr *w = &send_wr;
	ibv_wr_start(x);
	x->wr_id = 0, x->wr_flags = w->send_flags & ~IBV_SEND_INLINE;
	ibv_wr_rdma_read(x, w->wr.rdma.rkey, w->wr.rdma.remote_addr);
	ibv_wr_set_sge(x, w->sg_list->lkey, w->sg_list->addr, w->sg_list->length);
	if (ah)
		ibv_wr_set_ud_addr(x, ah, qp->qp_num, KEY);
	return ibv_wr_complete(x);
}

static void call(enum verb verb)
{
	switch (verb) {
	case SEND: case INLINE: case REFUSED: result = ibv_post_send(qp, &send_wr, &bad_send); break;
	case RECV: result = ibv_post_recv(qp, &recv_wr, &bad_recv); break;
	case SHARED: result = ibv_post_srq_recv(srq, &recv_wr, &bad_recv); break;
	case NOTIFY: result = ibv_req_notify_cq(cq, 0); break;
	case CALLS: result = calls(); break;
	default: result = ibv_poll_cq(cq, 1, &wc);
	}
}

static inline volatile unsigned char *stack_pointer(void)
{
	unsigned char *p;
#ifdef __x86_64__
	__asm__("mov %%rsp, %0" : "=r"(p));
#else
	__asm__("mov %0, sp" : "=r"(p));
#endif
	return p;
}

// measure paints the stack below its frame, makes the call, and measures how far the paint was overwritten.
static __attribute__((noinline)) void measure(enum verb verb)
{
	volatile unsigned char *top = stack_pointer(), *p;
	for (p = top - DEPTH; p < top; p++)
		*p = PAINT;
	call(verb);
	for (p = top - DEPTH; p < top && *p == PAINT;)
		p++;
	size_t depth = top - p;
	enum verb counts = verb == POLL && !result ? EMPTY : verb == POLL && wc.status ? FAILED : verb;
	if (depth > deepest[counts])
		deepest[counts] = depth;
}

static void completion(enum ibv_wc_status status)
{
	do
		measure(POLL);
	while (result == 0);
	EXPECT(result == 1 && wc.status == status);
}

static void post(enum ibv_wr_opcode opcode, unsigned flags, uint32_t key)
{
	static struct ibv_sge s;
	s = (struct ibv_sge){(uintptr_t)memory, 16, mr->lkey};
	send_wr = (struct ibv_send_wr){.sg_list = &s, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED | flags, .wr.rdma = {.remote_addr = (uintptr_t)memory + SIZE, .rkey = key}};
	if (efa && opcode == IBV_WR_SEND)
		send_wr.wr.ud.ah = ah, send_wr.wr.ud.remote_qpn = qp->qp_num, send_wr.wr.ud.remote_qkey = KEY;
	measure(efa && opcode == IBV_WR_RDMA_READ ? CALLS : flags ? INLINE : SEND);
	EXPECT(result == 0);
}

// refused posts an invalid request: on EFA, an unsignaled one.
static void refused(void)
{
	post(IBV_WR_SEND, 0, 0);
	completion(IBV_WC_SUCCESS);
	send_wr.send_flags = 0;
	measure(REFUSED);
	EXPECT(result);
}

// fill posts to idle queues until they are full, and beyond.
static void fill(void)
{
	for (int i = 0; i < FEW; i++) {
		measure(POLL);
		EXPECT(result == 0);
		measure(RECV);
		EXPECT(result == 0);
		measure(NOTIFY);
		EXPECT(result == 0);
		post(i % 3 ? IBV_WR_SEND : IBV_WR_RDMA_READ, 0, mr->rkey);
		post(i % 3 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, mr->rkey);
		if (srq) {
			measure(SHARED);
			EXPECT(result == 0);
		}
	}
	for (int i = 0; i < 1 << 16 && !result; i++)
		measure(REFUSED);
	EXPECT(result);
}

// fail posts to a queue pair in ERR.
static void fail(struct ibv_context *context)
{
	static const enum verb verbs[] = {SEND, RECV, POLL, NOTIFY};
	static struct ibv_sge s;
	struct ibv_port_attr port;
	s = (struct ibv_sge){(uintptr_t)memory, 16, mr->lkey};
	recv_wr = (struct ibv_recv_wr){.sg_list = &s, .num_sge = 1};
	send_wr = (struct ibv_send_wr){.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	CHECK(!ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
		CHECK(!ibv_query_port(context, 1, &port));
		call(verbs[i]);
		printf("%d %s\n", result, names[verbs[i]]);
	}
	CHECK(!ibv_query_port(context, 1, &port));
}

static void *run(void *unused)
{
	static struct ibv_sge s;
	CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
	s = (struct ibv_sge){(uintptr_t)memory + SIZE, SIZE, mr->lkey};
	recv_wr = (struct ibv_recv_wr){.sg_list = &s, .num_sge = 1};
	if (posts)
		fill();
	for (int i = 0; i < ROUNDS && !posts; i++) {
		measure(POLL);
		EXPECT(result == 0);
		measure(RECV);
		EXPECT(result == 0);
		measure(NOTIFY);
		EXPECT(result == 0);
		post(IBV_WR_SEND, i % 2 ? IBV_SEND_INLINE : 0, 0);
		completion(IBV_WC_SUCCESS);
		completion(IBV_WC_SUCCESS);
		if (efa && !srd)
			continue;
		post(efa ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, !efa && i % 2 ? IBV_SEND_INLINE : 0, mr->rkey);
		completion(IBV_WC_SUCCESS);
	}
	if (efa) {
		measure(RECV);
		refused();
		completion(IBV_WC_SUCCESS);
		mr->lkey ^= 0x100;
		post(IBV_WR_SEND, 0, 0);
		completion(IBV_WC_LOC_PROT_ERR);
	} else if (!posts) {
		post(IBV_WR_RDMA_WRITE, 0, mr->rkey ^ 0x100);
		completion(IBV_WC_REM_ACCESS_ERR);
	}
	syscall(SYS_exit, 0); // the only exit that seccomp allows
	return unused;
}

static void connect_to_itself(struct ibv_context *context)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
	CHECK(!ibv_query_gid(context, 1, 1, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

// be_ready prepares EFA's queue pair, which sends datagrams to itself.
static void be_ready(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr_ex x = {.send_cq = cq, .recv_cq = cq, .qp_type = srd ? IBV_QPT_DRIVER : IBV_QPT_UD,
		.pd = pd,
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 32},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND |
		(srd ? IBV_QP_EX_WITH_RDMA_READ : 0)};
	struct efadv_qp_init_attr e = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
	CHECK(qp = srd ? efadv_create_qp_ex(context, &x, &e, sizeof e) : ibv_create_qp_ex(context, &x));
	extended = ibv_qp_to_qp_ex(qp); // resolved lazily at the first call
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
	CHECK(!ibv_query_gid(context, 1, 0, &to.grh.dgid));
	CHECK(ah = ibv_create_ah(pd, &to));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	srd = !strcmp(argv[1], "srd"), efa = srd || !strcmp(argv[1], "ud");
	error = !strcmp(argv[1], "error"), posts = error || !strcmp(argv[1], "posts");
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	CHECK(list && list[0] && (context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
	CHECK(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof memory,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 32}};
	struct ibv_srq_init_attr shared = {.attr = {.max_wr = DEEP, .max_sge = 1}};
	if (posts) {
		attr.cap.max_send_wr = attr.cap.max_recv_wr = DEEP;
		srq = ibv_create_srq(pd, &shared); // unsupported by some
	}
	if (efa) {
		be_ready(context, pd);
	} else {
		CHECK(qp = ibv_create_qp(pd, &attr));
		connect_to_itself(context);
	}

	if (error) {
		fail(context);
		CHECK(!ibv_destroy_qp(qp) && (!srq || !ibv_destroy_srq(srq)) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
		return 0;
	}
	pthread_t thread;
	pthread_attr_t attributes;
	CHECK(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, STACK));
	CHECK(!pthread_create(&thread, &attributes, run, NULL) && !pthread_join(thread, NULL));
	if (wrong) {
		fprintf(stderr, "%s:%d: under seccomp: not as expected\n", __FILE__, wrong);
		return 1;
	}
	for (int i = 0; i < VERBS; i++)
		if (deepest[i])
			printf("%zu %s\n", deepest[i], names[i]);
	return 0;
}
