// SPDX-License-Identifier: BSD-2-Clause

// Two connected queue pairs in one process: messages in both directions, and every kind of request. The exit status
// reports success. The argument is rc or uc.
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

enum { SIZE = 4096, ROUNDS = 64 };

struct end {
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *out, *in; // two buffers of SIZE bytes
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_pd *pd;

static void connect_to(struct ibv_qp *qp, uint32_t number, union ibv_gid *gid)
{
	int rc = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
		(rc ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0)};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = 1, .hop_limit = 1}}};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		(rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static struct end make(enum ibv_qp_type type)
{
	struct end e;
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64}};
	CHECK(e.qp = ibv_create_qp(pd, &a));
	CHECK(e.out = calloc(2, SIZE));
	e.in = e.out + SIZE;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(e.mr = ibv_reg_mr(pd, e.out, 2 * SIZE, access));
	return e;
}

static void receive(struct end *e, uint64_t id)
{
	struct ibv_sge s = {(uintptr_t)e->in, SIZE, e->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(e->qp, &wr, &bad));
}

static void post(struct end *e, struct ibv_send_wr wr, uint32_t length)
{
	struct ibv_sge s = {(uintptr_t)e->out, length, e->mr->lkey};
	struct ibv_send_wr *bad;
	wr.wr_id = 1, wr.sg_list = &s, wr.num_sge = length > 0, wr.send_flags |= IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
}

// next sleeps until the next completion and returns it.
static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0);
		if (n)
			return wc;
		CHECK(!ibv_req_notify_cq(cq, 0));
		n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0);
		if (n)
			return wc;
		struct ibv_cq *of;
		void *unused;
		struct pollfd p = {.fd = channel->fd, .events = POLLIN};
		CHECK(poll(&p, 1, 20000) == 1);
		CHECK(!ibv_get_cq_event(channel, &of, &unused));
		CHECK(of == cq);
		ibv_ack_cq_events(cq, 1);
	}
}

static void expect(enum ibv_wc_status status)
{
	struct ibv_wc wc = next();
	if (wc.status == status)
		return;
	fprintf(stderr, "completion %llu: %s, not %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status),
		ibv_wc_status_str(status));
	exit(1);
}

// both waits for the completions of a message at its sender and receiver, and returns the receiver's.
static struct ibv_wc both(void)
{
	struct ibv_wc got = {0};
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next();
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == 2)
			got = wc;
	}
	CHECK(got.wr_id == 2);
	return got;
}

static void messages(struct end *e)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct end *from = &e[i % 2], *to = &e[1 - i % 2];
		uint32_t length = i * 61 + 1;
		memset(from->out, i + 1, length);
		memset(to->in, 0, SIZE);
		receive(to, 2);
		struct ibv_send_wr wr = {.opcode = i % 3 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, .imm_data = i};
		if (length <= 64)
			wr.send_flags = IBV_SEND_INLINE;
		post(from, wr, length);
		struct ibv_wc wc = both();
		CHECK(wc.byte_len == length && wc.opcode == IBV_WC_RECV && wc.qp_num == to->qp->qp_num);
		CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) == !!(i % 3) && (i % 3 || wc.imm_data == (uint32_t)i));
		CHECK(memcmp(to->in, from->out, length) == 0 && (length == SIZE || to->in[length] == 0));
	}
}

static void writes(struct end *e)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = {.remote_addr = (uintptr_t)e[1].in + 3, .rkey = e[1].mr->rkey}};
	memset(e[1].in, 0, SIZE);
	memset(e[0].out, 77, 100);
	post(&e[0], wr, 100);
	expect(IBV_WC_SUCCESS);
	CHECK(e[1].in[2] == 0 && e[1].in[3] == 77 && e[1].in[102] == 77 && e[1].in[103] == 0);
	receive(&e[1], 2);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, wr.imm_data = 5;
	post(&e[0], wr, 9);
	struct ibv_wc wc = both();
	CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == 5 && wc.byte_len == 9);
}

static void reads(struct end *e)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = {.remote_addr = (uintptr_t)e[1].in, .rkey = e[1].mr->rkey}};
	memset(e[1].in, 55, 200);
	post(&e[0], wr, 200);
	expect(IBV_WC_SUCCESS);
	CHECK(e[0].out[0] == 55 && e[0].out[199] == 55);

	uint64_t *word = (uint64_t *)e[1].in, *was = (uint64_t *)e[0].out;
	*word = 40;
	wr = (struct ibv_send_wr){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = {.remote_addr = (uintptr_t)word, .rkey = e[1].mr->rkey, .compare_add = 2}};
	post(&e[0], wr, 8);
	expect(IBV_WC_SUCCESS);
	CHECK(*word == 42 && *was == 40);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, wr.wr.atomic.compare_add = 42, wr.wr.atomic.swap = 1;
	post(&e[0], wr, 8);
	expect(IBV_WC_SUCCESS);
	CHECK(*word == 1 && *was == 42);
	post(&e[0], wr, 8);
	expect(IBV_WC_SUCCESS);
	CHECK(*word == 1 && *was == 1);
}

// errors breaks the connection: a request with an unknown key fails, later ones are flushed, and the peer gets an
// event.
static void errors(struct end *e)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = {.remote_addr = (uintptr_t)e[1].in, .rkey = e[1].mr->rkey ^ 0x100}};
	receive(&e[0], 3);
	post(&e[0], wr, 8);
	expect(IBV_WC_REM_ACCESS_ERR);
	expect(IBV_WC_WR_FLUSH_ERR);
	struct ibv_async_event event;
	struct pollfd p = {.fd = context->async_fd, .events = POLLIN};
	for (int communication = 0;; communication++) {
		CHECK(poll(&p, 1, 20000) == 1 && !ibv_get_async_event(context, &event));
		ibv_ack_async_event(&event);
		if (event.event_type == IBV_EVENT_QP_ACCESS_ERR)
			break;
		CHECK(event.event_type == IBV_EVENT_COMM_EST && !communication);
	}
	CHECK(event.element.qp == e[1].qp);
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	CHECK(!ibv_query_qp(e[1].qp, &a, IBV_QP_STATE, &i) && a.qp_state == IBV_QPS_ERR);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	enum ibv_qp_type type = strcmp(argv[1], "rc") ? IBV_QPT_UC : IBV_QPT_RC;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, channel, 0));
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 1, &gid));
	struct end e[2] = {make(type), make(type)};
	connect_to(e[0].qp, e[1].qp->qp_num, &gid);
	connect_to(e[1].qp, e[0].qp->qp_num, &gid);
	messages(e);
	writes(e);
	if (type == IBV_QPT_RC) {
		reads(e);
		errors(e);
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(e[i].qp) && !ibv_dereg_mr(e[i].mr));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	printf("%s: fine\n", argv[1]);
	return 0;
}
