// SPDX-License-Identifier: BSD-2-Clause

// Behavior of programs that is difficult for Go libraries. Each case prints its result and exits with 0 on success.

#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

// A queue pair that is connected to itself.
struct own {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel; // optional
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[128];
};

static struct ibv_context *open_first(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	CHECK(list && n > 0);
	struct ibv_context *context = ibv_open_device(list[0]);

	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static void make(struct own *o, struct ibv_context *context)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {16, 16, 1, 1, 0}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	o->context = context;
	CHECK(o->pd = ibv_alloc_pd(context));
	CHECK(init.send_cq = init.recv_cq = o->cq = ibv_create_cq(context, 64, NULL, o->channel, 0));
	CHECK(o->qp = ibv_create_qp(o->pd, &init));
	CHECK(o->mr = ibv_reg_mr(o->pd, o->memory, sizeof o->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_modify_qp(o->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = o->qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}}};
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(o->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(o->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

// turn writes 64 bytes from one half of the memory to the other, and checks the completion and the data.
static void turn(struct own *o, int i)
{
	struct ibv_sge sge = {(uintptr_t)o->memory, 64, o->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = {(uintptr_t)o->memory + 64, o->mr->rkey}}, *bad;
	struct ibv_wc wc;
	int n;

	memset(o->memory, i, 64);
	CHECK(!ibv_post_send(o->qp, &wr, &bad));
	while ((n = ibv_poll_cq(o->cq, 1, &wc)) == 0)
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
	CHECK(!memcmp(o->memory, o->memory + 64, 64));
}

static void destroy(struct own *o)
{
	CHECK(!ibv_destroy_qp(o->qp) && !ibv_dereg_mr(o->mr) && !ibv_destroy_cq(o->cq) && !ibv_dealloc_pd(o->pd));
}

static void *many_turns(void *context)
{
	static _Thread_local struct own o;

	make(&o, context);
	for (int i = 0; i < 200; i++)
		turn(&o, i & 127);
	destroy(&o);
	return NULL;
}

// The minimum stack size of a thread in C.
static void threads(void)
{
	struct ibv_context *context = open_first();
	pthread_t t[16];
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	CHECK(!pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN + 16384));
	for (int i = 0; i < 16; i++)
		CHECK(!pthread_create(&t[i], &attr, many_turns, context));
	for (int i = 0; i < 16; i++)
		CHECK(!pthread_join(t[i], NULL));
	CHECK(!ibv_close_device(context));
}

static volatile int signals;

// A handler that needs more stack than a goroutine has.
static void count(int signal)
{
	volatile char much[60000];

	memset((void *)much, signal, sizeof much);
	signals++;
}

static void *many_makes(void *context)
{
	static _Thread_local struct own o;

	for (int i = 0; i < 300; i++) {
		make(&o, context);
		turn(&o, i & 127);
		destroy(&o);
	}
	return NULL;
}

// Handlers of the program, without SA_ONSTACK, that interrupt calls.
static void handlers(void)
{
	struct sigaction action = {.sa_handler = count};
	struct itimerval every = {{0, 200}, {0, 200}};
	static struct own o;

	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	struct ibv_context *context = open_first();
	pthread_t t;

	make(&o, context);
	setitimer(ITIMER_REAL, &every, NULL);
	for (int i = 0; signals < 2000; i++) {
		struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

		CHECK(cq && !ibv_destroy_cq(cq));
		turn(&o, i & 127);
		if (i % 64 == 0)
			raise(SIGUSR1);
	}
	every = (struct itimerval){0};
	setitimer(ITIMER_REAL, &every, NULL);
	destroy(&o);
	CHECK(!pthread_create(&t, NULL, many_makes, context));
	for (int i = 0; i < 5000 && !pthread_kill(t, SIGUSR1); i++)
		usleep(100);
	CHECK(!pthread_join(t, NULL));
	// signals that all threads of the program block are not handled by threads of the library
	sigset_t usr1, pending;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	signals = 0;
	CHECK(!kill(getpid(), SIGUSR1));
	usleep(1000);
	CHECK(!sigpending(&pending) && sigismember(&pending, SIGUSR1) && signals == 0);
	// faults of the program are handled by the program
	pid_t child = fork();

	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		raise(SIGSEGV);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

// SIGURG, with which the Go runtime preempts its threads, remains available to the program, and interrupts none of its
// calls.
static void urgent(void)
{
	struct sigaction action = {.sa_handler = count};

	sigaction(SIGURG, &action, NULL); // before the library is loaded
	struct ibv_context *context = open_first();
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, many_makes, context));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(t[i], NULL));
	CHECK(signals == 0);
	CHECK(!sigaction(SIGURG, NULL, &action) && action.sa_handler == count);
	CHECK(!(action.sa_flags & (SA_ONSTACK | SA_RESTART)));
	CHECK(!ibv_close_device(context));
}

static void *write_later(void *own)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	usleep(100000);
	turn(own, 7);
	return NULL;
}

// A signal ends waits for events with EINTR, unless its handler has SA_RESTART.
static void interrupts(void)
{
	struct sigaction action = {.sa_handler = count};
	struct itimerval every = {{0, 10000}, {0, 10000}};
	struct ibv_context *context = open_first();
	struct rdma_event_channel *connections = rdma_create_event_channel();
	static struct own o;
	struct ibv_async_event asynchronous;
	struct rdma_cm_event *connection;
	struct ibv_cq *cq;
	void *of;
	pthread_t t;

	CHECK(o.channel = ibv_create_comp_channel(context));
	CHECK(connections);
	make(&o, context);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	CHECK(ibv_get_cq_event(o.channel, &cq, &of) == -1 && errno == EINTR);
	CHECK(ibv_get_async_event(context, &asynchronous) == -1 && errno == EINTR);
	CHECK(rdma_get_cm_event(connections, &connection) == -1 && errno == EINTR);
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	signals = 0;
	CHECK(!ibv_req_notify_cq(o.cq, 0));
	CHECK(!pthread_create(&t, NULL, write_later, &o));
	CHECK(!ibv_get_cq_event(o.channel, &cq, &of) && cq == o.cq && signals > 2);
	CHECK(!pthread_join(t, NULL));
	every = (struct itimerval){0};
	setitimer(ITIMER_REAL, &every, NULL);
	ibv_ack_cq_events(o.cq, 1);
	rdma_destroy_event_channel(connections);
	destroy(&o);
	CHECK(!ibv_destroy_comp_channel(o.channel) && !ibv_close_device(context));
}

static void forks(void)
{
	static struct own o, fresh;
	struct ibv_wc wc;
	int status;

	make(&o, open_first());
	turn(&o, 1);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_sge sge = {(uintptr_t)o.memory, 64, o.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

		errno = 0;
		CHECK(ibv_poll_cq(o.cq, 1, &wc) == -1 && errno == ENODEV);
		CHECK(ibv_post_send(o.qp, &wr, &bad) != 0);
		CHECK(ibv_alloc_mw(o.pd, IBV_MW_TYPE_1) == NULL && errno == ENODEV);
		CHECK(ibv_dealloc_pd(o.pd) != 0);
		CHECK(ibv_reg_mr(o.pd, o.memory, 8, 0) == NULL);
		make(&fresh, open_first()); // a separate device, at another address
		for (int i = 0; i < 100; i++)
			turn(&fresh, i);
		destroy(&fresh);
		CHECK(ibv_poll_cq(o.cq, 1, &wc) == -1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < 100; i++)
		turn(&o, i);
	destroy(&o);
}

static void *first_call(void *none)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	CHECK(list && n > 0);
	ibv_free_device_list(list);
	return none;
}

// ends waits for a process, which must succeed.
static void ends(pid_t of)
{
	int status;

	CHECK(of > 0 && waitpid(of, &status, 0) == of);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A thread forks while another one makes the first call of the process. Calls in the parent, the child, and a child of
// that child succeed.
static void opening(void)
{
	for (int i = 0; i < 60; i++) {
		pid_t process = fork();

		if (process == 0) {
			pthread_t t;

			alarm(60);
			CHECK(!pthread_create(&t, NULL, first_call, NULL));
			usleep(i * 7919 % 13000);
			pid_t child = fork();

			if (child == 0) {
				alarm(60);
				if (i % 2)
					first_call(NULL);
				pid_t grandchild = fork();

				if (grandchild == 0) {
					alarm(60);
					first_call(NULL);
					_exit(0);
				}
				ends(grandchild);
				_exit(0);
			}
			ends(child);
			CHECK(!pthread_join(t, NULL));
			first_call(NULL);
			_exit(0);
		}
		ends(process);
	}
}

static void plain(void)
{
	static struct own o;

	make(&o, open_first());
	for (int i = 0; i < 1000; i++)
		turn(&o, i & 127);
	destroy(&o);
	CHECK(!ibv_close_device(o.context));
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

// Cost of calls: the minimum of several rounds.
static void costs(void)
{
	static struct own o;
	double start = now(), first, least[3] = {1e9, 1e9, 1e9};
	struct ibv_wc wc[32];

	make(&o, open_first());
	first = now() - start;
	for (int round = 0; round < 200; round++) {
		double ns[3];

		start = now();
		for (int i = 0; i < 1000; i++)
			CHECK(ibv_poll_cq(o.cq, 1, wc) == 0);
		ns[0] = (now() - start) / 1000;
		struct ibv_sge sge = {(uintptr_t)o.memory, 8, o.mr->lkey};
		struct ibv_send_wr wr[8], *bad;

		for (int i = 0; i < 8; i++)
			wr[i] = (struct ibv_send_wr){.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				.next = i < 7 ? &wr[i + 1] : NULL, .wr.rdma = {(uintptr_t)o.memory + 64, o.mr->rkey}};
		start = now();
		for (int i = 0; i < 1000; i++) {
			CHECK(!ibv_post_send(o.qp, &wr[7], &bad));
			while (ibv_poll_cq(o.cq, 1, wc) == 0)
				;
		}
		ns[1] = (now() - start) / 1000;
		start = now();
		for (int i = 0; i < 100; i++) {
			CHECK(!ibv_post_send(o.qp, wr, &bad));
			for (int n = 0; n < 8;)
				n += ibv_poll_cq(o.cq, 32, wc);
		}
		ns[2] = (now() - start) / 800;
		for (int i = 0; i < 3; i++)
			least[i] = ns[i] < least[i] ? ns[i] : least[i];
	}
	destroy(&o);
	printf("first device and queue pair: %.1f ms\npoll of an empty queue: %.0f ns\n8-byte WRITE, post and poll: %.0f ns\n"
	       "in lists of 8: %.0f ns each\n",
	       first / 1e6, least[0], least[1], least[2]);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"plain", plain}, {"threads", threads}, {"handlers", handlers}, {"urgent", urgent},
		{"interrupts", interrupts}, {"forks", forks}, {"opening", opening}, {"costs", costs}};

	for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			printf("%s: fine\n", argv[1]);
			return 0;
		}
	fprintf(stderr, "usage: host plain|threads|handlers|urgent|interrupts|forks|opening|costs\n");
	return 2;
}
