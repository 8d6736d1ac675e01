// SPDX-License-Identifier: BSD-2-Clause

// Makes random calls. samecalls_linux_test.go makes the same calls in Go; the commands to the kernel, the queues and
// the printed results are compared. Arguments: the kind of queue pair (rc, xrc, or EFA's ud or srd), a seed, and live
// if the adapter works.
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

enum { SIZE = 1 << 14, KEY = 7, DEPTH = 32, SGES = 2, INLINE = 32, STEPS = 40, LIVE = 200 };
static char *const memory = (char *)(1ull << 45);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static struct ibv_xrcd *xrcd;
static struct ibv_srq *srq;
static struct ibv_qp *target;
static uint32_t srqn;
static int rc, srd, xrc; // rc: or xrc

static uint32_t state;
static uint32_t below(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 16) % n;
}

static void make(void)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq,
		.qp_type = xrc ? IBV_QPT_XRC_SEND : rc ? IBV_QPT_RC : IBV_QPT_UD, .cap = {DEPTH, DEPTH, SGES, SGES, INLINE}};
	if (xrc) {
		a.cap.max_recv_wr = a.cap.max_recv_sge = 0;
		struct ibv_xrcd_init_attr d = {IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1, O_CREAT};
		CHECK(xrcd = ibv_open_xrcd(context, &d));
		struct ibv_srq_init_attr_ex s = {.attr = {DEPTH, SGES, 0}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd,
			.cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
				IBV_SRQ_INIT_ATTR_CQ};
		CHECK((srq = ibv_create_srq_ex(context, &s)) && !ibv_get_srq_num(srq, &srqn));
		struct ibv_qp_init_attr_ex t = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
		CHECK(target = ibv_create_qp_ex(context, &t));
	}
	if (!srd) {
		CHECK(qp = ibv_create_qp(pd, &a));
		return;
	}
	struct ibv_qp_init_attr_ex x = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_DRIVER, .cap = a.cap, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ};
	struct efadv_qp_init_attr e = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
	CHECK(qp = efadv_create_qp_ex(context, &x, &e, sizeof e));
}

static void ready(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid, int index)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = index}}};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		(rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | (rc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
	if (!rc)
		CHECK(ah = ibv_create_ah(pd, &a.ah_attr));
}

static int pieces(struct ibv_sge *s, uint32_t most)
{
	int n = 1 + below(SGES);
	for (int i = 0; i < n; i++) {
		s[i].addr = (uintptr_t)memory + below(SIZE / 2);
		s[i].length = 1 + below(most);
		s[i].lkey = mr->lkey;
	}
	return n;
}

static void receives(int step, int n)
{
	struct ibv_recv_wr wr[3] = {0}, *bad;
	struct ibv_sge s[3][SGES];
	for (int i = 0; i < n; i++)
		wr[i] = (struct ibv_recv_wr){.wr_id = 10 * step + i, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = s[i],
			.num_sge = pieces(s[i], 500)};
	int code = srq ? ibv_post_srq_recv(srq, wr, &bad) : ibv_post_recv(qp, wr, &bad);
	printf("%d: receives: %d\n", step, abs(code)); // libraries give -EINVAL as well
}

static void sends(int step, int n)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
	};
	struct ibv_send_wr wr[3] = {0}, *bad;
	struct ibv_sge s[3][SGES];
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *w = &wr[i];
		*w = (struct ibv_send_wr){.wr_id = 10 * step + i, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = s[i],
			.opcode = opcodes[below(rc ? 5 : 2)]};
		w->imm_data = htobe32(below(1 << 16));
		w->send_flags = below(8) ? IBV_SEND_SIGNALED : 0;
		if (w->opcode != IBV_WR_RDMA_READ && below(3) == 0)
			w->send_flags |= IBV_SEND_INLINE;
		if (rc && below(4) == 0)
			w->send_flags |= IBV_SEND_FENCE | IBV_SEND_SOLICITED;
		w->num_sge = pieces(s[i], w->send_flags & IBV_SEND_INLINE ? INLINE / SGES : 500);
		if (!rc)
			w->wr.ud.ah = ah, w->wr.ud.remote_qpn = below(1 << 16), w->wr.ud.remote_qkey = below(1 << 16);
		else
			w->wr.rdma.remote_addr = (uintptr_t)memory + below(SIZE), w->wr.rdma.rkey = mr->rkey;
		w->qp_type.xrc.remote_srqn = srqn;
	}
	printf("%d: sends: %d\n", step, abs(ibv_post_send(qp, wr, &bad)));
}

static void calls(int step, int n)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	struct ibv_sge s[SGES];
	ibv_wr_start(x);
	for (int i = 0; i < n; i++) {
		x->wr_id = 10 * step + i, x->wr_flags = below(16) ? IBV_SEND_SIGNALED : 0;
		uint32_t kind = below(3);
		switch (kind) {
		case 0: ibv_wr_send(x); break;
		case 1: ibv_wr_send_imm(x, htobe32(below(1 << 16))); break;
		default: ibv_wr_rdma_read(x, mr->rkey, (uintptr_t)memory + below(SIZE));
		}
		int count = pieces(s, INLINE);
		if (kind == 2)
			ibv_wr_set_sge(x, s[0].lkey, s[0].addr, s[0].length);
		else if (below(2))
			ibv_wr_set_sge_list(x, count, s);
		else
			ibv_wr_set_inline_data(x, (void *)(uintptr_t)s[0].addr, s[0].length);
		uint32_t number = below(1 << 16);
		ibv_wr_set_ud_addr(x, ah, number, below(1 << 16));
	}
	printf("%d: calls: %d\n", step, ibv_wr_complete(x));
}

// live sends a message to itself and prints the completions.
static void live(int step)
{
	struct ibv_sge in = {(uintptr_t)memory + SIZE / 2, 1000, mr->lkey};
	struct ibv_sge out = {.addr = (uintptr_t)memory + below(100), .lkey = mr->lkey};
	struct ibv_recv_wr r = {.wr_id = step, .sg_list = &in, .num_sge = 1}, *bad_r;
	struct ibv_send_wr w = {.wr_id = 1000 + step, .sg_list = &out, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = IBV_WR_SEND_WITH_IMM}, *bad_w;
	out.length = 1 + below(400);
	if (below(2))
		w.opcode = IBV_WR_SEND;
	w.imm_data = htobe32(below(1 << 16));
	if (!rc)
		w.wr.ud.ah = ah, w.wr.ud.remote_qpn = qp->qp_num, w.wr.ud.remote_qkey = KEY;
	w.qp_type.xrc.remote_srqn = srqn;
	CHECK(!(srq ? ibv_post_srq_recv(srq, &r, &bad_r) : ibv_post_recv(qp, &r, &bad_r)));
	CHECK(!ibv_post_send(qp, &w, &bad_w));
	for (int n = 0; n < 2;) {
		struct ibv_wc c = {0};
		int got = ibv_poll_cq(cq, 1, &c);
		CHECK(got >= 0);
		n += got;
		if (got)
			printf("%llu %d %d %u %u %x %u %u %x\n", (unsigned long long)c.wr_id, c.status, c.opcode, c.vendor_err,
				c.byte_len, be32toh(c.imm_data), c.qp_num, c.src_qp, c.wc_flags);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	xrc = !strcmp(argv[1], "xrc"), rc = xrc || !strcmp(argv[1], "rc"), srd = !strcmp(argv[1], "srd");
	state = strtoul(argv[2], NULL, 0);
	CHECK(mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	for (int i = 0; i < SIZE; i++)
		memory[i] = i * 7;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	struct ibv_device_attr device;
	struct ibv_port_attr port = {0};
	union ibv_gid gid;
	int index = rc;
	CHECK(!ibv_query_device(context, &device) && !ibv_query_port(context, 1, &port));
	CHECK(!ibv_query_gid(context, 1, index, &gid));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	CHECK(cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0));
	make();
	ready(qp, target ? target->qp_num : qp->qp_num, &gid, index);
	if (target)
		ready(target, qp->qp_num, &gid, index);
	for (int i = 0; i < (argc > 3 ? LIVE : STEPS); i++) {
		uint32_t kind = argc > 3 ? 9 : below(4), n = 1 + below(3);
		if (kind == 9)
			live(i);
		else if (kind == 0)
			receives(i, n);
		else if (srd && kind < 3)
			calls(i, n);
		else
			sends(i, n);
	}
	CHECK(!ibv_destroy_qp(qp));
	if (xrc)
		CHECK(!ibv_destroy_qp(target) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
	CHECK((!ah || !ibv_destroy_ah(ah)) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
