// SPDX-License-Identifier: BSD-2-Clause

// Doorbells and queues of an mlx4 adapter as libmlx4 uses them. Numbers are big-endian. No doorbell has the number of
// requests: each request has an owner bit that flips with each round of its queue.
#include <endian.h>
#include <string.h>

#include <infiniband/mlx4dv.h>

#include "mlx4.h"

static uint32_t record(volatile uint32_t *r)
{
	uint32_t v = be32toh(*r);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return v;
}

// Receives

static int pieces(struct piece *p, const uint8_t *at, const uint8_t *end)
{
	int n = 0;
	for (; at + DATA <= end && n < PIECES; at += DATA) {
		struct mlx4_wqe_data_seg s;
		memcpy(&s, at, sizeof s);
		if (be32toh(s.lkey) == MLX4_INVALID_LKEY)
			break;
		p[n++] = (struct piece){be64toh(s.addr), be32toh(s.byte_count), be32toh(s.lkey)};
	}
	return n;
}

bool mlx4_next_receive(struct qp *qp, struct receive *r)
{
	struct srq *s = qp->srq;
	if (s) {
		if ((uint16_t)record(s->record) == s->consumed)
			return false;
		const uint8_t *wqe = s->buffer + (size_t)(s->head & s->requests) * s->stride;
		r->index = s->head;
		r->pieces = pieces(r->piece, wqe + sizeof(struct mlx4_wqe_srq_next_seg), wqe + s->stride);
		return true;
	}
	if (!qp->rq_wqes || (uint16_t)record(qp->record) == qp->rq_head)
		return false;
	const uint8_t *wqe = qp->rq + (size_t)(qp->rq_head & (qp->rq_wqes - 1)) * qp->rq_stride;
	r->index = qp->rq_head;
	r->pieces = pieces(r->piece, wqe, wqe + qp->rq_stride);
	return true;
}

void mlx4_consume_receive(struct qp *qp, const struct receive *r)
{
	struct srq *s = qp->srq;
	if (!s) {
		qp->rq_head++;
		return;
	}
	struct mlx4_wqe_srq_next_seg *next = (void *)(s->buffer + (size_t)(r->index & s->requests) * s->stride);
	s->head = be16toh(next->next_wqe_index);
	s->consumed++;
	uint16_t left = record(s->record) - s->consumed;
	if (s->limit && left < s->limit) {
		s->limit = 0;
		async_event(s->o.file, IBV_EVENT_SRQ_LIMIT_REACHED, s->user, &s->async_sent);
	}
}

// Sends

static enum operation operation_of(uint8_t opcode)
{
	switch (opcode) {
	case MLX4_OPCODE_NOP: return OP_NONE;
	case MLX4_OPCODE_SEND: case MLX4_OPCODE_SEND_IMM: case MLX4_OPCODE_SEND_INVAL: return OP_SEND;
	case MLX4_OPCODE_RDMA_WRITE: case MLX4_OPCODE_RDMA_WRITE_IMM: return OP_WRITE;
	case MLX4_OPCODE_RDMA_READ: return OP_READ;
	case MLX4_OPCODE_ATOMIC_CS: return OP_COMPARE_SWAP;
	case MLX4_OPCODE_ATOMIC_FA: return OP_FETCH_ADD;
	case MLX4_OPCODE_BIND_MW: case MLX4_OPCODE_LOCAL_INVAL: return OP_BIND;
	}
	refuse("send request of opcode", opcode);
	return OP_UNKNOWN;
}

// A bind names the window by its next key, which differs from the current one in the low byte.
static uint32_t present_key(uint32_t next)
{
	struct object *o = object_of(next >> 8);
	return o && o->kind == MW ? ((struct mw *)o)->key : next;
}

static void read_binding(struct request *r, const uint8_t *at)
{
	struct mlx4_wqe_bind_seg s;
	memcpy(&s, at, sizeof s);
	uint32_t next = be32toh(s.new_rkey), flags = be32toh(s.flags1);
	r->binding = (struct binding){
		.key = present_key(next), .variant = next, .of = be32toh(s.lkey), .address = be64toh(s.addr),
		.length = be64toh(s.length),
	};
	if (flags & MLX4_WQE_MW_ATOMIC)
		r->binding.access |= IBV_ACCESS_REMOTE_ATOMIC;
	if (flags & MLX4_WQE_MW_REMOTE_WRITE)
		r->binding.access |= IBV_ACCESS_REMOTE_WRITE;
	if (flags & MLX4_WQE_MW_REMOTE_READ)
		r->binding.access |= IBV_ACCESS_REMOTE_READ;
}

// read_inline reads inline data, which is in segments that do not cross 64-byte boundaries.
static void read_inline(struct request *r, const uint8_t *wqe, const uint8_t *at, const uint8_t *end)
{
	do {
		uint32_t length;
		memcpy(&length, at, sizeof length);
		length = be32toh(length) & ~MLX4_INLINE_SEG;
		at += sizeof length;
		if (length > (size_t)(end - at) || r->inlined + length > INLINE_BYTES) {
			r->operation = OP_UNKNOWN;
			return;
		}
		memcpy(r->data + r->inlined, at, length);
		r->inlined += length;
		at += length;
	} while ((at - wqe) % MLX4_INLINE_ALIGN == 0 && at + sizeof(uint32_t) <= end);
}

// read_data reads SGEs and inline data. A segment with length 0 has the inline bit.
static void read_data(struct request *r, const uint8_t *wqe, const uint8_t *at, const uint8_t *end)
{
	for (r->pieces = 0; at + DATA <= end && r->pieces < PIECES; at += DATA) {
		struct mlx4_wqe_data_seg s;
		memcpy(&s, at, sizeof s);
		uint32_t count = be32toh(s.byte_count);
		if (count & MLX4_INLINE_SEG && count & ~MLX4_INLINE_SEG) {
			read_inline(r, wqe, at, end);
			return;
		}
		count &= ~MLX4_INLINE_SEG;
		r->piece[r->pieces++] = (struct piece){be64toh(s.addr), count, be32toh(s.lkey)};
	}
}

enum { UNITS = 0x3f }; // units of 16 bytes; 0 means no request, as in RESET

static bool ready(const struct qp *qp, const struct mlx4_wqe_ctrl_seg *control, uint32_t *first)
{
	*first = be32toh(__atomic_load_n(&control->owner_opcode, __ATOMIC_ACQUIRE));
	return *first >> 31 == !!(qp->sq_head & qp->sq_blocks) && control->fence_size & UNITS;
}

bool mlx4_next_send(struct qp *qp, struct request *r)
{
	enum { OPCODE = 0x1f };
	uint8_t wqe[1 << MOST_STRIDE];
	uint32_t first;
	const uint8_t *slot = qp->sq + (size_t)(qp->sq_head & (qp->sq_blocks - 1)) * qp->entry_size;
	if (!qp->sq_blocks || !ready(qp, (const void *)slot, &first))
		return false;
	memcpy(wqe, slot, qp->entry_size);
	struct mlx4_wqe_ctrl_seg control;
	memcpy(&control, wqe, sizeof control);
	uint32_t flags = be32toh(control.srcrb_flags), units = control.fence_size & UNITS;
	memset(r, 0, offsetof(struct request, data));
	r->opcode = first & OPCODE, r->index = qp->sq_head, r->blocks = 1;
	r->operation = operation_of(r->opcode);
	r->signaled = flags & MLX4_WQE_CTRL_CQ_UPDATE, r->solicited = flags & MLX4_WQE_CTRL_SOLICIT;
	r->immediate = r->opcode == MLX4_OPCODE_SEND_INVAL ? be32toh(control.imm) : control.imm;
	r->with_immediate = r->opcode == MLX4_OPCODE_SEND_IMM || r->opcode == MLX4_OPCODE_RDMA_WRITE_IMM;
	r->with_invalidate = r->opcode == MLX4_OPCODE_SEND_INVAL;
	if (qp->type == IBV_QPT_XRC_SEND)
		r->to_srq = flags >> 8;
	if (units * DATA > qp->entry_size) {
		refuse("a request of units", units);
		r->operation = OP_UNKNOWN;
		return true;
	}
	const uint8_t *at = wqe + sizeof control, *end = wqe + units * DATA;
	if (qp->type == IBV_QPT_UD) {
		struct mlx4_wqe_datagram_seg to;
		memcpy(&to, at, sizeof to);
		r->to_qp = be32toh(to.dqpn), r->to_key = be32toh(to.qkey);
		at += sizeof to;
	}
	if (r->opcode == MLX4_OPCODE_BIND_MW) {
		read_binding(r, at);
		return true;
	}
	if (r->opcode == MLX4_OPCODE_LOCAL_INVAL) {
		struct mlx4_wqe_local_inval_seg old;
		memcpy(&old, at, sizeof old);
		r->binding.key = be32toh(old.mem_key), r->with_invalidate = true;
		return true;
	}
	if (r->operation >= OP_WRITE && r->operation <= OP_FETCH_ADD) {
		struct mlx4_wqe_raddr_seg remote;
		memcpy(&remote, at, sizeof remote);
		r->remote = be64toh(remote.raddr), r->remote_key = be32toh(remote.rkey);
		at += sizeof remote;
	}
	if (r->operation == OP_COMPARE_SWAP || r->operation == OP_FETCH_ADD) {
		struct mlx4_wqe_atomic_seg atomic;
		memcpy(&atomic, at, sizeof atomic);
		r->swap = be64toh(atomic.swap_add), r->compare = be64toh(atomic.compare);
		at += sizeof atomic;
	}
	read_data(r, wqe, at, end);
	return true;
}

// Completions

static const uint8_t syndromes[] = {
	[LOCAL_LENGTH] = MLX4_CQE_SYNDROME_LOCAL_LENGTH_ERR, [LOCAL_OPERATION] = MLX4_CQE_SYNDROME_LOCAL_QP_OP_ERR,
	[LOCAL_PROTECTION] = MLX4_CQE_SYNDROME_LOCAL_PROT_ERR, [FLUSHED] = MLX4_CQE_SYNDROME_WR_FLUSH_ERR,
	[REMOTE_INVALID] = MLX4_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, [REMOTE_ACCESS] = MLX4_CQE_SYNDROME_REMOTE_ACCESS_ERR,
	[REMOTE_OPERATION] = MLX4_CQE_SYNDROME_REMOTE_OP_ERR, [RETRIES] = MLX4_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR,
	[RNR_RETRIES] = MLX4_CQE_SYNDROME_RNR_RETRY_EXC_ERR, [LOCAL_ACCESS] = MLX4_CQE_SYNDROME_LOCAL_ACCESS_ERR,
	[WINDOW] = MLX4_CQE_SYNDROME_MW_BIND_ERR,
};

static uint8_t opcode_of(const struct completion *c)
{
	if (c->status != OK)
		return MLX4_CQE_OPCODE_ERROR;
	if (!c->receive)
		return c->request->opcode;
	if (c->request->operation == OP_WRITE)
		return MLX4_RECV_OPCODE_RDMA_WRITE_IMM;
	if (c->request->with_invalidate)
		return MLX4_RECV_OPCODE_SEND_INVAL;
	return c->request->with_immediate ? MLX4_RECV_OPCODE_SEND_IMM : MLX4_RECV_OPCODE_SEND;
}

static uint32_t used(const struct cq *cq) { return (cq->produced - record(cq->record)) & 0xffffff; }

static struct mlx4_cqe *slot(uint8_t *buffer, uint32_t entries, uint32_t n)
{
	return (struct mlx4_cqe *)(buffer + (size_t)(n & entries) * ENTRY) + 1; // second half of a 64-byte entry
}

// mlx4_clear_entries marks all entries of a buffer as belonging to the previous round, so that their owner bit is
// invalid.
void mlx4_clear_entries(struct cq *cq, uint8_t *buffer, uint32_t entries)
{
	for (uint32_t n = cq->produced; n != cq->produced + entries + 1; n++)
		slot(buffer, entries, n)->owner_sr_opcode = n & (entries + 1) ? 0 : MLX4_CQE_OWNER_MASK;
}

// put writes the next completion. Its last byte makes it valid.
static void put(struct cq *cq, const struct mlx4_cqe *e, uint8_t last)
{
	struct mlx4_cqe *s = slot(cq->buffer, cq->entries, cq->produced);
	uint8_t owner = cq->produced++ & (cq->entries + 1) ? MLX4_CQE_OWNER_MASK : 0;
	memcpy(s, e, offsetof(struct mlx4_cqe, owner_sr_opcode));
	__atomic_store_n(&s->owner_sr_opcode, last | owner, __ATOMIC_RELEASE);
}

bool mlx4_complete(struct cq *cq, const struct completion *c)
{
	if (used(cq) > cq->entries)
		return false;
	struct mlx4_cqe e = {
		.vlan_my_qpn = htobe32(c->qp->number), .byte_cnt = htobe32(c->length),
		.wqe_index = htobe16(c->receive ? c->receive->index : c->request->index),
	};
	if (c->receive && c->status == OK) {
		if (c->request->with_immediate)
			e.immed_rss_invalid = c->request->immediate;
		if (c->request->with_invalidate)
			e.immed_rss_invalid = htobe32(c->request->immediate);
		e.g_mlpath_rqpn = htobe32((uint32_t)c->global << 31 | (c->qp->type == IBV_QPT_UD ? c->from->number : 0));
	}
	if (c->receive && c->qp->xrcd)
		e.g_mlpath_rqpn = htobe32(c->qp->srq->o.handle);
	if (c->status != OK)
		((struct mlx4_err_cqe *)&e)->syndrome = syndromes[c->status];
	put(cq, &e, opcode_of(c) | (c->receive ? 0 : MLX4_CQE_IS_SEND_MASK));
	if (c->status != OK || c->receive && c->request->solicited)
		cq->solicited = cq->produced;
	return true;
}

// mlx4_switch_buffer marks the end of the old buffer with a special completion; libmlx4 then copies those before it.
int mlx4_switch_buffer(struct cq *cq, uint8_t *buffer, uint32_t entries)
{
	if (used(cq) > cq->entries || used(cq) >= entries)
		return EINVAL;
	put(cq, &(struct mlx4_cqe){0}, MLX4_CQE_OPCODE_RESIZE);
	mlx4_clear_entries(cq, buffer, entries);
	cq->buffer = buffer, cq->entries = entries;
	return 0;
}

// The arm request has a sequence number, which libmlx4 increments with each event that it reads.
bool mlx4_take_request(struct cq *cq)
{
	uint32_t request = record(cq->record + 1), number = request >> 28 & 3;
	uint32_t last = request & MLX4_CQ_DB_REQ_NOT_SOL ? cq->solicited : cq->produced;
	if (number == cq->told || (int32_t)((last - request) << 8) <= 0)
		return false;
	cq->told = number;
	return true;
}
