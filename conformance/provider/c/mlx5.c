// SPDX-License-Identifier: BSD-2-Clause

// The driver of an mlx5 adapter: what its commands carry beside the usual, and its queues as libmlx5 fills and reads
// them. Numbers in queues are in network order.
#include <endian.h>
#include <string.h>
#include <sys/mman.h>

#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <infiniband/mlx5dv.h>

#include "emulated.h"

enum { PAGE = 4096, UNIT = 16, BLOCK = MLX5_SEND_WQE_BB };

// Commands

static int get_context(struct call *c)
{
	struct mlx5_ib_alloc_ucontext_req_v2 q;
	take_driver(c, &q, sizeof q);
	if (q.flags & MLX5_IB_ALLOC_UCTX_DEVX)
		return EOPNOTSUPP; // libmlx5 asks again without
	if (!(q.lib_caps & MLX5_LIB_CAP_DYN_UAR) || q.max_cqe_version < 1)
		return refuse("a library without dynamic doorbell pages, of capabilities", q.lib_caps);
	struct mlx5_ib_alloc_ucontext_resp r = {
		.qp_tab_size = 1 << 14, .bf_reg_size = 512, .cache_line_size = 64, .max_sq_desc_sz = 1024, .max_rq_desc_sz = 512,
		.max_send_wqebb = MOST_REQUESTS, .max_recv_wr = MOST_REQUESTS, .max_srq_recv_wr = MOST_REQUESTS, .num_ports = 1,
		.response_length = sizeof r, .cqe_version = 1, .cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
		.log_uar_size = 12, .num_uars_per_page = 1, // no tot_bfregs: doorbell pages are asked for one by one
	};
	return answer_driver(c, &r, sizeof r);
}

static int query_device(struct call *c)
{
	struct mlx5_ib_query_device_resp r = {.response_length = sizeof r};
	return answer_driver(c, &r, sizeof r);
}

static int alloc_pd(struct call *c, struct pd *pd)
{
	struct mlx5_ib_alloc_pd_resp r = {.pdn = pd->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_ah(struct call *c, struct ah *ah)
{
	struct mlx5_ib_create_ah_resp r = {.response_length = sizeof r, .dmac = {2, 0x67, 0x6f, 0x76, 0x65, 0x72}};
	(void)ah;
	return answer_driver(c, &r, sizeof r);
}

static uint8_t *address(uint64_t a) { return (uint8_t *)(uintptr_t)a; }

static bool power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

static int create_cq(struct call *c, struct cq *cq)
{
	struct mlx5_ib_create_cq q;
	take_driver(c, &q, sizeof q);
	if (q.cqe_comp_en || q.flags & ~MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX)
		return refuse("compression or flags of a completion queue", q.flags);
	if (!power_of_two(cq->entries + 1) || q.cqe_size != 64 && q.cqe_size != 128 || !q.buf_addr || !q.db_addr)
		return EINVAL;
	cq->buffer = address(q.buf_addr);
	cq->record = (volatile uint32_t *)address(q.db_addr);
	cq->entry_size = q.cqe_size;
	// Nothing is asked for yet, which the sequence number before the first one says.
	cq->told = 3;
	cq->record[1] = ~0u;
	struct mlx5_ib_create_cq_resp r = {.cqn = cq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_srq(struct call *c, struct srq *srq)
{
	struct mlx5_ib_create_srq q;
	take_driver(c, &q, sizeof q);
	if (q.flags)
		return refuse("flags of a shared receive queue", q.flags);
	if (!power_of_two(srq->requests + 1) || !q.buf_addr || !q.db_addr)
		return EINVAL;
	srq->buffer = address(q.buf_addr);
	srq->record = (volatile uint32_t *)address(q.db_addr);
	for (srq->stride = 32; srq->stride < UNIT * (srq->sges + 1);)
		srq->stride *= 2;
	struct mlx5_ib_create_srq_resp r = {.srqn = srq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct mlx5_ib_create_qp q;
	take_driver(c, &q, sizeof q);
	// Scattering small messages to completions is allowed, not asked for: this device never does.
	if (q.flags & ~(MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE | MLX5_QP_FLAG_UAR_PAGE_INDEX))
		return refuse("flags of a queue pair", q.flags);
	if (!q.db_addr || (q.sq_wqe_count || q.rq_wqe_count) && !q.buf_addr || q.rq_wqe_shift > 16)
		return EINVAL;
	if (q.sq_wqe_count && !power_of_two(q.sq_wqe_count) || q.rq_wqe_count && !power_of_two(q.rq_wqe_count))
		return EINVAL;
	qp->rq = address(q.buf_addr);
	qp->rq_wqes = q.rq_wqe_count, qp->rq_stride = 1u << q.rq_wqe_shift;
	qp->sq = qp->rq + ((uint64_t)qp->rq_wqes << q.rq_wqe_shift);
	qp->sq_blocks = q.sq_wqe_count;
	qp->record = (volatile uint32_t *)address(q.db_addr);
	qp->user_index = q.uidx;
	struct mlx5_ib_create_qp_resp r = {0};
	return answer_driver(c, &r, sizeof r);
}

static int resize_cq(struct call *c, struct cq *cq, uint32_t entries)
{
	(void)c, (void)cq;
	return refuse("a completion queue resized to", entries);
}

// Doorbell pages

static int new_uar(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
	struct uar *u = handle ? new_object(f, UAR, sizeof *u) : NULL;
	if (!u)
		return handle ? ENOMEM : EINVAL;
	uint32_t length = PAGE, id = u->o.handle;
	u->offset = (uint64_t)id * PAGE;
	u->page = map_device(f, u->offset, PAGE);
	if (!u->page || !give(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &u->offset, sizeof u->offset) ||
		!give(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length, sizeof length) ||
		!give(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &id, sizeof id)) {
		free_object(&u->o);
		return EINVAL;
	}
	handle->data = id;
	return 0;
}

static int free_uar(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE);
	struct uar *u = handle ? find_object(f, UAR, handle->data) : NULL;
	if (!u)
		return ENOENT;
	munmap(u->page, PAGE);
	return destroy_object(&u->o);
}

static int mlx5_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	if (h->object_id == MLX5_IB_OBJECT_UAR && h->method_id == MLX5_IB_METHOD_UAR_OBJ_ALLOC)
		return new_uar(f, h);
	if (h->object_id == MLX5_IB_OBJECT_UAR && h->method_id == MLX5_IB_METHOD_UAR_OBJ_DESTROY)
		return free_uar(f, h);
	return EPROTONOSUPPORT;
}

// Every doorbell is eight bytes that are not all zero: taking them out tells each ring from the next.
static bool doorbell_rung(struct uar *u)
{
	static const int places[] = {MLX5_CQ_DOORBELL, 0x800, 0x900, 0xa00, 0xb00};
	uint64_t any = 0;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		uint64_t *bell = (uint64_t *)(u->page + places[i]);
		if (__atomic_load_n(bell, __ATOMIC_RELAXED))
			any |= __atomic_exchange_n(bell, 0, __ATOMIC_ACQ_REL);
	}
	return any;
}

// Queues

static uint32_t record(volatile uint32_t *r)
{
	uint32_t v = be32toh(*r);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return v;
}

// pieces reads data segments, until one that ends a list.
static int pieces(struct piece *p, const uint8_t *at, const uint8_t *end)
{
	int n = 0;
	for (; at + UNIT <= end && n < PIECES; at += UNIT) {
		struct mlx5_wqe_data_seg s;
		memcpy(&s, at, sizeof s);
		if (be32toh(s.lkey) == MLX5_INVALID_LKEY)
			break;
		p[n++] = (struct piece){be64toh(s.addr), be32toh(s.byte_count), be32toh(s.lkey)};
	}
	return n;
}

static bool next_receive(struct qp *qp, struct receive *r)
{
	if (qp->srq) {
		struct srq *s = qp->srq;
		if ((uint16_t)record(s->record) == s->consumed)
			return false;
		const uint8_t *wqe = s->buffer + (size_t)(s->head & s->requests) * s->stride;
		r->index = s->head;
		r->pieces = pieces(r->piece, wqe + UNIT, wqe + s->stride);
		return true;
	}
	if (!qp->rq_wqes || (uint16_t)record(qp->record) == qp->rq_head)
		return false;
	const uint8_t *wqe = qp->rq + (size_t)(qp->rq_head & (qp->rq_wqes - 1)) * qp->rq_stride;
	r->index = qp->rq_head;
	r->pieces = pieces(r->piece, wqe, wqe + qp->rq_stride);
	return true;
}

static void consume_receive(struct qp *qp, const struct receive *r)
{
	struct srq *s = qp->srq;
	if (!s) {
		qp->rq_head++;
		return;
	}
	struct mlx5_wqe_srq_next_seg *next = (void *)(s->buffer + (size_t)(r->index & s->requests) * s->stride);
	s->head = be16toh(next->next_wqe_index);
	s->consumed++;
	uint16_t left = record(s->record) - s->consumed;
	if (s->limit && left < s->limit) {
		s->limit = 0;
		async_event(s->o.file, IBV_EVENT_SRQ_LIMIT_REACHED, s->user, &s->async_sent);
	}
}

// copy_request makes one piece of a request that may wrap around the end of the queue.
static uint32_t copy_request(const struct qp *qp, uint8_t *to)
{
	const uint8_t *ring = qp->sq;
	size_t size = (size_t)qp->sq_blocks * BLOCK, at = (size_t)(qp->sq_head & (qp->sq_blocks - 1)) * BLOCK;
	const struct mlx5_wqe_ctrl_seg *control = (const void *)(ring + at);
	uint32_t units = be32toh(control->qpn_ds) & 0x3f;
	for (uint32_t i = 0; i < units; i++, at = (at + UNIT) % size)
		memcpy(to + i * UNIT, ring + at, UNIT);
	return units;
}

static enum operation operation_of(uint8_t opcode)
{
	switch (opcode) {
	case MLX5_OPCODE_NOP: return OP_NONE;
	case MLX5_OPCODE_SEND: case MLX5_OPCODE_SEND_IMM: case MLX5_OPCODE_SEND_INVAL: return OP_SEND;
	case MLX5_OPCODE_RDMA_WRITE: case MLX5_OPCODE_RDMA_WRITE_IMM: return OP_WRITE;
	case MLX5_OPCODE_RDMA_READ: return OP_READ;
	case MLX5_OPCODE_ATOMIC_CS: return OP_COMPARE_SWAP;
	case MLX5_OPCODE_ATOMIC_FA: return OP_FETCH_ADD;
	}
	refuse("send request of opcode", opcode);
	return OP_UNKNOWN;
}

static void read_inline(struct request *r, const uint8_t *at, const uint8_t *end)
{
	uint32_t length;
	memcpy(&length, at, sizeof length);
	length = be32toh(length) & ~MLX5_INLINE_SEG;
	if (length > (size_t)(end - at) - sizeof length || length > INLINE_BYTES) {
		r->operation = OP_UNKNOWN;
		return;
	}
	memcpy(r->data, at + sizeof length, length);
	r->inlined = length;
}

static bool next_send(struct qp *qp, struct request *r)
{
	uint8_t wqe[64 * UNIT];
	if (!qp->sq_blocks || (uint16_t)record(qp->record + 1) == qp->sq_head)
		return false;
	uint32_t units = copy_request(qp, wqe);
	struct mlx5_wqe_ctrl_seg control;
	memcpy(&control, wqe, sizeof control);
	uint32_t first = be32toh(control.opmod_idx_opcode);
	memset(r, 0, offsetof(struct request, data));
	r->opcode = first, r->index = qp->sq_head, r->blocks = (units + 3) / 4;
	r->signaled = control.fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE;
	r->solicited = control.fm_ce_se & MLX5_WQE_CTRL_SOLICITED;
	r->operation = operation_of(r->opcode);
	r->immediate = control.imm;
	r->with_immediate = r->opcode == MLX5_OPCODE_SEND_IMM || r->opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
	r->with_invalidate = r->opcode == MLX5_OPCODE_SEND_INVAL;
	if (!units || (uint16_t)(first >> 8) != qp->sq_head || be32toh(control.qpn_ds) >> 8 != qp->number) {
		refuse("a request that is none: its first word is", first);
		r->operation = OP_UNKNOWN, r->blocks = 1;
		return true;
	}
	const uint8_t *at = wqe + sizeof control, *end = wqe + units * UNIT;
	if (qp->type == IBV_QPT_UD) {
		struct mlx5_wqe_av av;
		memcpy(&av, at, sizeof av);
		r->to_qp = be32toh(av.dqp_dct) & 0xffffff, r->to_key = be32toh(av.key.qkey.qkey);
		at += sizeof av;
	}
	if (r->operation >= OP_WRITE && r->operation <= OP_FETCH_ADD) {
		struct mlx5_wqe_raddr_seg remote;
		memcpy(&remote, at, sizeof remote);
		r->remote = be64toh(remote.raddr), r->remote_key = be32toh(remote.rkey);
		at += sizeof remote;
	}
	if (r->operation == OP_COMPARE_SWAP || r->operation == OP_FETCH_ADD) {
		struct mlx5_wqe_atomic_seg atomic;
		memcpy(&atomic, at, sizeof atomic);
		r->swap = be64toh(atomic.swap_add), r->compare = be64toh(atomic.compare);
		at += sizeof atomic;
	}
	if (at + UNIT <= end && (at[0] & 0x80))
		read_inline(r, at, end);
	else
		r->pieces = pieces(r->piece, at, end);
	return true;
}

// Completions

static const uint8_t syndromes[] = {
	[LOCAL_LENGTH] = MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, [LOCAL_OPERATION] = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
	[LOCAL_PROTECTION] = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, [FLUSHED] = MLX5_CQE_SYNDROME_WR_FLUSH_ERR,
	[REMOTE_INVALID] = MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, [REMOTE_ACCESS] = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR,
	[REMOTE_OPERATION] = MLX5_CQE_SYNDROME_REMOTE_OP_ERR, [RETRIES] = MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR,
	[RNR_RETRIES] = MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, [LOCAL_ACCESS] = MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR,
};

static uint8_t opcode_of(const struct completion *c)
{
	if (c->status != OK)
		return c->receive ? MLX5_CQE_RESP_ERR : MLX5_CQE_REQ_ERR;
	if (!c->receive)
		return MLX5_CQE_REQ;
	if (c->request->operation == OP_WRITE)
		return MLX5_CQE_RESP_WR_IMM;
	return c->request->with_immediate ? MLX5_CQE_RESP_SEND_IMM : MLX5_CQE_RESP_SEND;
}

static bool complete(struct cq *cq, const struct completion *c)
{
	uint32_t consumed = record(cq->record) & 0xffffff;
	if (((cq->produced - consumed) & 0xffffff) > cq->entries)
		return false;
	uint8_t *slot = cq->buffer + (size_t)(cq->produced & cq->entries) * cq->entry_size + cq->entry_size - 64;
	struct mlx5_cqe64 e = {0};
	uint8_t opcode = opcode_of(c);
	e.srqn_uidx = htobe32(c->qp->user_index);
	e.byte_cnt = htobe32(c->length);
	e.sop_drop_qpn = htobe32((c->receive ? 0 : (uint32_t)c->request->opcode << 24) | c->qp->number);
	e.wqe_counter = htobe16(c->receive ? c->receive->index : c->request->index);
	if (c->receive && c->status == OK) {
		e.imm_inval_pkey = c->request->with_immediate ? c->request->immediate : 0;
		e.flags_rqpn = htobe32((uint32_t)c->global << 28 | (c->qp->type == IBV_QPT_UD ? c->from->number : 0));
	}
	if (c->status != OK)
		((struct mlx5_err_cqe *)&e)->syndrome = syndromes[c->status];
	bool solicited = c->status != OK || c->receive && c->request->solicited;
	cq->produced++;
	if (solicited)
		cq->solicited = cq->produced;
	memcpy(slot, &e, offsetof(struct mlx5_cqe64, op_own));
	bool owner = (cq->produced - 1) & (cq->entries + 1);
	__atomic_store_n(slot + offsetof(struct mlx5_cqe64, op_own), opcode << 4 | solicited << 1 | owner, __ATOMIC_RELEASE);
	return true;
}

// The request to be told has a sequence number, which libmlx5 counts up with each event that it reads: perhaps before the
// call that sent the event has returned.
static bool take_request(struct cq *cq)
{
	uint32_t request = record(cq->record + 1), number = request >> 28 & 3;
	uint32_t last = request & MLX5_CQ_DB_REQ_NOT_SOL ? cq->solicited : cq->produced;
	if (number == cq->told || (int32_t)((last - request) << 8) <= 0)
		return false;
	cq->told = number;
	return true;
}

const struct driver mlx5 = {
	.name = "mlx5", .get_context = get_context, .query_device = query_device, .alloc_pd = alloc_pd,
	.create_ah = create_ah, .create_cq = create_cq, .resize_cq = resize_cq, .create_srq = create_srq,
	.create_qp = create_qp, .ioctl = mlx5_ioctl, .rung = doorbell_rung, .next_send = next_send,
	.next_receive = next_receive, .consume_receive = consume_receive, .complete = complete, .take_request = take_request,
};
