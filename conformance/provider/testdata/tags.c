// SPDX-License-Identifier: BSD-2-Clause

// Makes random tag operations and sends messages for them. sametags_linux_test.go makes the same calls in Go; the
// commands to the kernel, the queues and the printed results are compared. Arguments: tags, a seed, and live if the
// adapter works.
#include <infiniband/tm_types.h>
#include <infiniband/verbs.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

enum { SIZE = 1 << 14, DEPTH = 32, TAGS = 4, OPS = 8, STEPS = 40, LIVE = 200, MOST = 3 };
static char *const memory = (char *)(1ull << 45);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint32_t handles[TAGS], unexpected;

static uint32_t state;
static uint32_t below(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 16) % n;
}

static void make(void)
{
	struct ibv_cq_init_attr_ex c = {.cqe = 2 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO};
	CHECK(cq = ibv_create_cq_ex(context, &c));
	struct ibv_srq_init_attr_ex s = {.attr = {DEPTH, 1, 0}, .srq_type = IBV_SRQT_TM, .pd = pd,
		.cq = ibv_cq_ex_to_cq(cq), .tm_cap = {TAGS, OPS}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
		IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM};
	CHECK(srq = ibv_create_srq_ex(context, &s));
	struct ibv_qp_init_attr q = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq,
		.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = DEPTH, .max_send_sge = 1}};
	CHECK(qp = ibv_create_qp(pd, &q));
}

static void ready(uint16_t lid)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .ah_attr = {.dlid = lid, .port_num = 1}};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_sge piece(void)
{
	uint32_t at = below(SIZE / 2);
	return (struct ibv_sge){(uintptr_t)memory + at, 1 + below(500), mr->lkey};
}

static void change(int step)
{
	static struct ibv_ops_wr w[MOST];
	static struct ibv_sge s[MOST];
	int n = 1 + below(MOST);
	for (int i = 0; i < n; i++) {
		w[i] = (struct ibv_ops_wr){.wr_id = 10 * step + i, .next = i + 1 < n ? &w[i + 1] : NULL};
		switch (below(4)) {
		case 0:
			w[i].opcode = IBV_WR_TAG_SYNC;
			break;
		case 1:
			w[i].opcode = IBV_WR_TAG_DEL;
			w[i].tm.handle = handles[below(TAGS)];
			break;
		default:
			w[i].opcode = IBV_WR_TAG_ADD;
			w[i].tm.add.recv_wr_id = below(1 << 16), w[i].tm.add.tag = below(1 << 16), w[i].tm.add.mask = below(1 << 16);
			w[i].tm.add.num_sge = below(4) != 0, w[i].tm.add.sg_list = &s[i];
			s[i] = piece();
		}
		if (below(3))
			w[i].flags |= IBV_OPS_SIGNALED;
		if (below(3) == 0)
			w[i].flags |= IBV_OPS_TM_SYNC, w[i].tm.unexpected_cnt = below(1 << 16);
	}
	struct ibv_ops_wr *bad = NULL;
	int err = ibv_post_srq_ops(srq, w, &bad);
	printf("%d: operations: %d, the bad one is %d\n", step, err, err ? (int)(bad - w) : -1);
	for (int i = 0; i < n; i++)
		if (w[i].opcode == IBV_WR_TAG_ADD)
			handles[below(TAGS)] = w[i].tm.handle;
}

static void receive(int step)
{
	struct ibv_sge s = piece();
	struct ibv_recv_wr w = {.wr_id = 10 * step, .sg_list = &s, .num_sge = 1}, *bad;
	printf("%d: receive: %d\n", step, ibv_post_srq_recv(srq, &w, &bad));
}

static void completion(void)
{
	struct ibv_poll_cq_attr a = {0};
	struct ibv_wc_tm_info tm = {0};
	while (ibv_start_poll(cq, &a))
		;
	enum ibv_wc_opcode opcode = ibv_wc_read_opcode(cq);
	unsigned flags = ibv_wc_read_wc_flags(cq);
	if (flags & IBV_WC_TM_MATCH)
		ibv_wc_read_tm_info(cq, &tm);
	if (opcode == IBV_WC_TM_RECV && !(flags & (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID)))
		unexpected++;
	printf("%llu %d %d %x %u %u %llx %x\n", (unsigned long long)cq->wr_id, cq->status, opcode, flags,
		opcode == IBV_WC_TM_RECV ? ibv_wc_read_byte_len(cq) : 0, ibv_wc_read_qp_num(cq), (unsigned long long)tm.tag,
		tm.priv);
	ibv_end_poll(cq);
}

static void live(int step)
{
	struct ibv_sge in = {(uintptr_t)memory + SIZE / 2, 2000, mr->lkey}, out = {(uintptr_t)memory, 0, mr->lkey};
	struct ibv_ops_wr o = {.wr_id = step, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC,
		.tm = {.unexpected_cnt = unexpected, .add = {1000 + step, &in, 1, step, ~0ull}}}, *bad_op;
	struct ibv_recv_wr r = {.wr_id = 2000 + step, .sg_list = &in, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr w = {.wr_id = 3000 + step, .sg_list = &out, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_tmh *h = (void *)memory;
	uint32_t kind = below(4);
	*h = (struct ibv_tmh){.opcode = kind ? IBV_TMH_EAGER : IBV_TMH_NO_TAG, .app_ctx = htobe32(below(1 << 16)),
		.tag = htobe64(kind == 1 ? step + 1 : step)};
	out.length = sizeof *h + below(1500);
	CHECK(!ibv_post_srq_ops(srq, &o, &bad_op));
	completion();
	if (kind < 2)
		CHECK(!ibv_post_srq_recv(srq, &r, &bad_recv));
	CHECK(!ibv_post_send(qp, &w, &bad_send));
	completion();
	completion();
	if (kind > 1) {
		if (out.length > 1024)
			completion();
		return;
	}
	struct ibv_ops_wr d = {.wr_id = 4000 + step, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED,
		.tm = {.handle = o.tm.handle}};
	CHECK(!ibv_post_srq_ops(srq, &d, &bad_op));
	completion();
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	state = strtoul(argv[2], NULL, 10);
	CHECK(mmap(memory, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
		memory);
	for (int i = 0; i < SIZE; i++)
		memory[i] = i * 7;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	make();
	ready(port.lid);
	if (argc > 3)
		for (int i = 0; i < LIVE; i++)
			live(i);
	else
		for (int i = 0; i < STEPS; i++)
			below(4) ? change(i) : receive(i);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}
