// SPDX-License-Identifier: BSD-2-Clause

// Doorbells and queues of an mlx5 adapter as libmlx5 uses them. Numbers are big-endian.
#include <endian.h>
#include <string.h>

#include <infiniband/mlx5dv.h>

#include "mlx5.h"

enum { BLOCK = MLX5_SEND_WQE_BB };

// Every doorbell is eight bytes that are not all zero, so clearing them distinguishes successive rings.
static uint64_t any;

static void take_bells(void *o)
{
	static const int places[] = {MLX5_CQ_DOORBELL, 0x800, 0x900, 0xa00, 0xb00};
	const struct uar *u = o;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		uint64_t *bell = (uint64_t *)(u->page + places[i]);
		if (__atomic_load_n(bell, __ATOMIC_RELAXED))
			any |= __atomic_exchange_n(bell, 0, __ATOMIC_ACQ_REL);
	}
}

bool mlx5_rung(void)
{
	any = 0;
	each(UAR, take_bells);
	return any;
}

// Queues

static uint32_t record(volatile uint32_t *r)
{
	uint32_t v = be32toh(*r);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return v;
}

// pieces reads data segments up to the end of the list.
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

bool mlx5_next_receive(struct qp *qp, struct receive *r)
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

void mlx5_consume_receive(struct qp *qp, const struct receive *r)
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

// copy_request linearizes a request that may wrap around the end of the queue.
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
	case MLX5_OPCODE_SEND: case MLX5_OPCODE_SEND_IMM: case MLX5_OPCODE_SEND_INVAL: case MLX5_OPCODE_TSO: return OP_SEND;
	case MLX5_OPCODE_RDMA_WRITE: case MLX5_OPCODE_RDMA_WRITE_IMM: return OP_WRITE;
	case MLX5_OPCODE_RDMA_READ: return OP_READ;
	case MLX5_OPCODE_ATOMIC_CS: return OP_COMPARE_SWAP;
	case MLX5_OPCODE_ATOMIC_FA: return OP_FETCH_ADD;
	case MLX5_OPCODE_UMR: return OP_BIND;
	case MLX5_OPCODE_TAG_MATCHING: return OP_TAGS;
	}
	refuse("send request of opcode", opcode);
	return OP_UNKNOWN;
}

static void read_inline(struct request *r, const uint8_t *at, const uint8_t *end)
{
	uint32_t length;
	memcpy(&length, at, sizeof length);
	length = be32toh(length) & ~MLX5_INLINE_SEG;
	if (length > (size_t)(end - at) - sizeof length || length > INLINE_BYTES - r->inlined) {
		r->operation = OP_UNKNOWN;
		return;
	}
	memcpy(r->data + r->inlined, at + sizeof length, length);
	r->inlined += length;
}

// read_packet reads the Ethernet segment of a packet, and returns its end.
static const uint8_t *read_packet(struct request *r, const uint8_t *at, const uint8_t *end)
{
	const struct mlx5_wqe_eth_seg *s = (const void *)at;
	r->inlined = be16toh(s->inline_hdr_sz);
	if (r->inlined > end - s->inline_hdr_start) {
		r->operation = OP_UNKNOWN, r->inlined = 0;
		return end;
	}
	memcpy(r->data, s->inline_hdr_start, r->inlined);
	if (r->opcode == MLX5_OPCODE_TSO)
		r->header = r->inlined, r->segment = be16toh(s->mss);
	enum { START = offsetof(struct mlx5_wqe_eth_seg, inline_hdr) };
	uint32_t rest = r->inlined > 2 ? r->inlined - 2 : 0;
	return at + START + (rest + UNIT - 1) / UNIT * UNIT;
}

// read_binding reads the change of a memory key's context that binds or unbinds a window. A mask selects the valid
// fields.
static void read_binding(struct request *r, uint32_t key, const uint8_t *at, const uint8_t *end)
{
	struct mlx5_wqe_umr_ctrl_seg control;
	struct mlx5_wqe_mkey_context_seg context;
	struct mlx5_wqe_umr_klm_seg data = {0};
	if ((size_t)(end - at) < sizeof control + sizeof context) {
		r->operation = OP_UNKNOWN;
		return;
	}
	memcpy(&control, at, sizeof control);
	memcpy(&context, at += sizeof control, sizeof context);
	if ((size_t)(end - at) >= sizeof context + sizeof data)
		memcpy(&data, at + sizeof context, sizeof data);
	r->binding = (struct binding){.key = key, .variant = be32toh(context.qpn_mkey)};
	r->with_invalidate = control.flags & MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN;
	if (context.free & MLX5_WQE_MKEY_CONTEXT_FREE)
		return;
	r->binding.of = be32toh(data.mkey);
	r->binding.address = be64toh(context.start_addr), r->binding.length = be64toh(context.len);
	if (context.access_flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE)
		r->binding.access |= IBV_ACCESS_REMOTE_WRITE;
	if (context.access_flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ)
		r->binding.access |= IBV_ACCESS_REMOTE_READ;
	if (context.access_flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC)
		r->binding.access |= IBV_ACCESS_REMOTE_ATOMIC;
}

bool mlx5_next_send(struct qp *qp, struct request *r)
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
	r->immediate = r->opcode == MLX5_OPCODE_SEND_INVAL ? be32toh(control.imm) : control.imm;
	r->with_immediate = r->opcode == MLX5_OPCODE_SEND_IMM || r->opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
	r->with_invalidate = r->opcode == MLX5_OPCODE_SEND_INVAL;
	if (!units || (uint16_t)(first >> 8) != qp->sq_head || be32toh(control.qpn_ds) >> 8 != qp->number) {
		if (qp->attr.qp_state != IBV_QPS_ERR) // many requests may follow the failed one
			refuse("invalid request, first word", first);
		r->operation = OP_UNKNOWN, r->blocks = 1;
		return true;
	}
	const uint8_t *at = wqe + sizeof control, *end = wqe + units * UNIT;
	if (qp->type == IBV_QPT_UD || qp->dynamic && r->operation != OP_BIND) {
		struct mlx5_wqe_av av;
		memcpy(&av, at, sizeof av);
		r->to_qp = be32toh(av.dqp_dct) & 0xffffff;
		if (qp->dynamic)
			r->access_key = be64toh(av.key.dc_key);
		else
			r->to_key = be32toh(av.key.qkey.qkey);
		at += sizeof av;
	}
	if (qp->type == IBV_QPT_RAW_PACKET)
		at = read_packet(r, at, end);
	if (qp->type == IBV_QPT_XRC_SEND && r->operation != OP_BIND) {
		uint32_t number; // shared receive queue
		memcpy(&number, at, sizeof number);
		r->to_srq = be32toh(number);
		at += UNIT;
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
	if (r->operation == OP_TAGS) {
		if (!mlx5_read_tags(r, at, end))
			r->operation = OP_UNKNOWN;
		at += sizeof(struct mlx5_wqe_tm_seg);
	}
	if (r->operation == OP_BIND)
		read_binding(r, be32toh(control.imm), at, end);
	else if (at + UNIT <= end && (at[0] & 0x80))
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
	[WINDOW] = MLX5_CQE_SYNDROME_MW_BIND_ERR,
};

static uint8_t opcode_of(const struct completion *c)
{
	if (c->status != OK)
		return c->receive ? MLX5_CQE_RESP_ERR : MLX5_CQE_REQ_ERR;
	if (!c->receive)
		return MLX5_CQE_REQ;
	if (c->request->operation == OP_WRITE)
		return MLX5_CQE_RESP_WR_IMM;
	if (c->request->with_invalidate)
		return MLX5_CQE_RESP_SEND_INV;
	return c->request->with_immediate ? MLX5_CQE_RESP_SEND_IMM : MLX5_CQE_RESP_SEND;
}

static uint32_t used(const struct cq *cq) { return (cq->produced - record(cq->record)) & 0xffffff; }

// put writes the next completion. Its last byte has the owner bit, which flips with each round of the queue and makes
// it valid.
static void put(struct cq *cq, const struct mlx5_cqe64 *e, uint8_t last)
{
	uint8_t *slot = cq->buffer + (size_t)(cq->produced & cq->entries) * cq->entry_size + cq->entry_size - 64;
	bool owner = cq->produced++ & (cq->entries + 1);
	memcpy(slot, e, offsetof(struct mlx5_cqe64, op_own));
	__atomic_store_n(slot + offsetof(struct mlx5_cqe64, op_own), last | owner, __ATOMIC_RELEASE);
}

// carry puts a small message inside the completion: before a 128-byte one, at the beginning of a 64-byte one.
static uint8_t carry(struct cq *cq, struct mlx5_cqe64 *e, const struct completion *c)
{
	enum { SCATTER32 = 4, SCATTER64 = 8 };
	if (!c->inside)
		return 0;
	bool of_tag = c->tagged && c->tagged->kind < TAG_UNEXPECTED; // the header is at the beginning
	if (c->length <= 32 && !of_tag) {
		memcpy(e, c->inside, c->length);
		return SCATTER32;
	}
	memcpy(cq->buffer + (size_t)(cq->produced & cq->entries) * cq->entry_size, c->inside, c->length);
	return SCATTER64;
}

bool mlx5_complete(struct cq *cq, const struct completion *c)
{
	if (used(cq) > cq->entries)
		return false;
	struct mlx5_cqe64 e = {0};
	e.srqn_uidx = htobe32(c->receive && c->qp->xrcd ? c->qp->srq->user_index : c->qp->user_index);
	e.byte_cnt = htobe32(c->length);
	e.timestamp = htobe64(now() * 1000);
	e.sop_drop_qpn = htobe32((c->receive ? 0 : (uint32_t)c->request->opcode << 24) | c->qp->number);
	e.wqe_counter = htobe16(c->receive ? c->receive->index : c->request->index);
	if (c->receive && c->status == OK) {
		if (c->request->with_immediate)
			e.imm_inval_pkey = c->request->immediate;
		if (c->request->with_invalidate)
			e.imm_inval_pkey = htobe32(c->request->immediate);
		if (c->qp->type == IBV_QPT_RAW_PACKET) // checksums are right
			e.hds_ip_ext = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK, e.l4_hdr_type_etc = MLX5_CQE_L3_HDR_TYPE_IPV4 << 2;
		e.flags_rqpn = htobe32((uint32_t)c->global << 28 | (c->qp->type == IBV_QPT_UD ? c->from->number : 0));
	}
	if (c->status != OK) {
		struct mlx5_err_cqe *failure = (struct mlx5_err_cqe *)&e;
		e.timestamp = 0; // shares storage with the syndromes
		failure->syndrome = syndromes[c->status];
		failure->vendor_err_synd = 0x40 + c->status;
	}
	bool solicited = c->status != OK || c->receive && c->request->solicited;
	uint8_t opcode = c->tagged ? mlx5_put_tagged(&e, c, opcode_of(c)) : opcode_of(c);
	put(cq, &e, opcode << 4 | carry(cq, &e, c) | solicited << 1);
	if (solicited)
		cq->solicited = cq->produced;
	return true;
}

// mlx5_switch_buffer marks the end of the old buffer with a special completion; libmlx5 then copies those before it.
int mlx5_switch_buffer(struct cq *cq, uint8_t *buffer, uint32_t entries)
{
	if (used(cq) > cq->entries || used(cq) >= entries)
		return EINVAL;
	struct mlx5_cqe64 e = {0};
	put(cq, &e, MLX5_CQE_RESIZE_CQ << 4);
	cq->buffer = buffer, cq->entries = entries;
	return 0;
}

// The arm request has a sequence number, which libmlx5 increments with each event that it reads, possibly before the
// call that sent the event returns.
bool mlx5_take_request(struct cq *cq)
{
	uint32_t request = record(cq->record + 1), number = request >> 28 & 3;
	uint32_t last = request & MLX5_CQ_DB_REQ_NOT_SOL ? cq->solicited : cq->produced;
	if (number == cq->told || (int32_t)((last - request) << 8) <= 0)
		return false;
	cq->told = number;
	return true;
}
