// SPDX-License-Identifier: BSD-2-Clause

// Makes random posts on an initiator of dynamic connections. dynamic_linux_test.go makes the same posts in Go; the
// commands to the kernel, the queues and the printed results are compared. Arguments: a seed, and live if the adapter
// works, or room to stop before the queue is full.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

enum { SIZE = 1 << 14, DEPTH = 32, SGES = 4, INLINE = 64, STEPS = 40, LIVE = 100, TARGETS = 3, REGION = 512 };
static char *const memory = (char *)(1ull << 45);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_qp *dci, *dct[TARGETS];
static struct ibv_ah *ah[TARGETS];
static uint64_t keys[TARGETS];

static uint32_t state;
static uint32_t below(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 16) % n;
}

static uint64_t wide(void)
{
	uint64_t v = 0;
	for (int i = 0; i < 4; i++)
		v = v << 16 | below(1 << 16);
	return v;
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr *a, enum ibv_qp_state to, int mask)
{
	a->qp_state = to;
	CHECK(!ibv_modify_qp(qp, a, IBV_QP_STATE | mask));
}

static void make_target(int i, struct ibv_qp_attr *a)
{
	keys[i] = wide();
	struct ibv_qp_init_attr_ex x = {.qp_type = IBV_QPT_DRIVER, .send_cq = cq, .recv_cq = cq, .srq = srq, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD};
	struct mlx5dv_qp_init_attr d = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = keys[i]}};
	CHECK(dct[i] = mlx5dv_create_qp(context, &x, &d));
	printf("target %d: number %u\n", i, dct[i]->qp_num);
	modify(dct[i], a, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(dct[i], a, IBV_QPS_RTR, IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU);
	printf("target %d: number %u\n", i, dct[i]->qp_num);
	a->ah_attr.grh.flow_label++;
	CHECK(ah[i] = ibv_create_ah(pd, &a->ah_attr));
}

static void make(const union ibv_gid *gid)
{
	struct ibv_qp_attr a = {.port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 4,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = 1, .hop_limit = 4, .flow_label = 5}}};
	for (int i = 0; i < TARGETS; i++)
		make_target(i, &a);
	struct ibv_qp_init_attr_ex x = {.qp_type = IBV_QPT_DRIVER, .send_cq = cq, .recv_cq = cq, .pd = pd,
		.cap = {.max_send_wr = DEPTH, .max_send_sge = SGES, .max_inline_data = INLINE},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |
			IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};
	struct mlx5dv_qp_init_attr d = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCI}};
	CHECK(dci = mlx5dv_create_qp(context, &x, &d));
	modify(dci, &a, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT);
	modify(dci, &a, IBV_QPS_RTR, IBV_QP_PATH_MTU);
	modify(dci, &a, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
		IBV_QP_SQ_PSN);
}

static void receive(int id)
{
	struct ibv_sge s = {(uintptr_t)memory + SIZE / 2, 1024, mr->lkey};
	struct ibv_recv_wr r = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;
	CHECK(!ibv_post_srq_recv(srq, &r, &bad));
}

enum { OP_SEND, OP_SEND_IMM, OP_SEND_INV, OP_WRITE, OP_WRITE_IMM, OP_READ, OP_SWAP, OP_ADD, OPS };

// posts makes a list of n requests. With live, each can succeed.
static void posts(int step, int n, int live)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(dci);
	struct mlx5dv_qp_ex *dv = mlx5dv_qp_ex_from_ibv_qp_ex(x);
	struct ibv_sge s[SGES];
	struct ibv_data_buf b[SGES];
	ibv_wr_start(x);
	for (int i = 0; i < n; i++) {
		x->wr_id = 10 * step + i, x->wr_flags = live || below(8) ? IBV_SEND_SIGNALED : 0;
		if (below(4) == 0)
			x->wr_flags |= IBV_SEND_FENCE;
		if (below(4) == 0)
			x->wr_flags |= IBV_SEND_SOLICITED;
		uint32_t op = below(OPS), rkey = live ? mr->rkey : (uint32_t)wide();
		if (live && op == OP_SEND_INV)
			op = OP_SEND;
		uint64_t remote = live ? (uintptr_t)memory + SIZE / 4 + 8 * below(64) : wide();
		uint32_t imm = htobe32(below(1 << 16));
		uint64_t compare = wide(), swap = wide();
		if (live && (op == OP_SEND || op == OP_SEND_IMM || op == OP_WRITE_IMM))
			receive(1000 + step);
		switch (op) {
		case OP_SEND: ibv_wr_send(x); break;
		case OP_SEND_IMM: ibv_wr_send_imm(x, imm); break;
		case OP_SEND_INV: ibv_wr_send_inv(x, rkey); break;
		case OP_WRITE: ibv_wr_rdma_write(x, rkey, remote); break;
		case OP_WRITE_IMM: ibv_wr_rdma_write_imm(x, rkey, remote, imm); break;
		case OP_READ: ibv_wr_rdma_read(x, rkey, remote); break;
		case OP_SWAP: ibv_wr_atomic_cmp_swp(x, rkey, remote, compare, swap); break;
		default: ibv_wr_atomic_fetch_add(x, rkey, remote, compare);
		}
		int entries = op >= OP_SWAP ? 1 : below(SGES + 1), inlined = op < OP_READ && entries && below(3) == 0;
		for (int j = 0; j < entries; j++) {
			uint32_t length = op >= OP_SWAP ? 8 : 1 + below(inlined ? INLINE / SGES : 200);
			s[j] = (struct ibv_sge){(uintptr_t)memory + 8 * below(REGION), length, mr->lkey};
			b[j] = (struct ibv_data_buf){(void *)(uintptr_t)s[j].addr, length};
		}
		if (inlined && entries == 1)
			ibv_wr_set_inline_data(x, b[0].addr, b[0].length);
		else if (inlined)
			ibv_wr_set_inline_data_list(x, entries, b);
		else if (entries == 1)
			ibv_wr_set_sge(x, s[0].lkey, s[0].addr, s[0].length);
		else
			ibv_wr_set_sge_list(x, entries, s);
		int to = below(TARGETS);
		uint32_t number = live ? dct[to]->qp_num : wide() & 0xffffff;
		uint64_t key = live ? keys[to] : wide();
		mlx5dv_wr_set_dc_addr(dv, ah[to], number, key);
	}
	printf("%d: posts: %d, then %u\n", step, ibv_wr_complete(x), state);
}

// drain prints completions until n sends have completed. The order is that of the queue.
static void drain(int n)
{
	while (n) {
		struct ibv_wc c = {0};
		int got = ibv_poll_cq(cq, 1, &c);
		CHECK(got >= 0);
		if (!got)
			continue;
		n -= c.qp_num == dci->qp_num;
		printf("%llu %d %d %u %x\n", (unsigned long long)c.wr_id, c.status, c.status ? 0 : c.opcode, c.qp_num,
			c.wc_flags);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	state = strtoul(argv[1], NULL, 0);
	int live = argc > 2 && !strcmp(argv[2], "live"), room = argc > 2 && !live, posted = 0;
	CHECK(mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	for (int i = 0; i < SIZE; i++)
		memory[i] = i * 7;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 1, &gid));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC));
	CHECK(cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
	struct ibv_srq_init_attr shared = {.attr = {DEPTH, 1, 0}};
	CHECK(srq = ibv_create_srq(pd, &shared));
	make(&gid);
	for (int i = 0; i < (live ? LIVE : STEPS); i++) {
		int n = 1 + below(3);
		if (room && (posted += n) >= DEPTH)
			break;
		posts(i, n, live);
		if (live)
			drain(n);
	}
	CHECK(!ibv_destroy_qp(dci));
	for (int i = 0; i < TARGETS; i++)
		CHECK(!ibv_destroy_qp(dct[i]) && !ibv_destroy_ah(ah[i]));
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	return 0;
}
