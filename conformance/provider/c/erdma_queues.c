// SPDX-License-Identifier: BSD-2-Clause

// Queues of an erdma adapter as liberdma uses them. Numbers are little-endian in requests and big-endian in
// completions. The layouts are the adapter's; no public header has them. The mapping of failures to statuses is partly
// a guess.
#include <endian.h>
#include <string.h>

#include "erdma.h"

// The first word of a request: opcode, number of blocks, and in the high byte the number of SGEs or inline bytes.
enum { OPCODE_AT = 27, INLINE = 1 << 25, SOLICITED = 1 << 23, SIGNALED = 1 << 22 };
enum { BLOCKS_AT = 52, MOST_BLOCKS = 7, COUNT_AT = 56 };

enum {
	WRITE, READ, SEND, SEND_IMMEDIATE, RECEIVED, RECEIVED_WRITE, RECEIVED_INVALIDATE, WRITE_IMMEDIATE = 9,
	RECEIVED_IMMEDIATE = 12, SEND_INVALIDATE = 13, COMPARE_SWAP = 17, FETCH_ADD = 18,
};

struct data {
	uint64_t address;
	uint32_t length, key;
};

// A request without its wrap-around: all kinds begin with the same words; data is at offset 16 or 32.
struct send {
	uint64_t first;
	uint32_t immediate, length;
	union {
		struct {
			uint32_t key, low, high;
		};
		struct {
			uint64_t swap, compare;
		};
		uint8_t data[16];
	};
	union {
		struct data list[6];
		uint8_t more[96];
	};
};

struct room {
	uint16_t index, unused;
	uint32_t qp, unused_too[2];
	uint64_t address;
	uint32_t length, key;
};

struct entry {
	uint32_t first, index, qp, immediate, length, unused[3];
};
_Static_assert(sizeof(struct send) == BLOCKS * SEND_BLOCK && sizeof(struct room) == RECEIVE &&
	sizeof(struct entry) == ENTRY, "as the adapter");

static uint64_t word(const struct mapping *bells, int i)
{
	return __atomic_load_n((uint64_t *)bells->at + i, __ATOMIC_ACQUIRE);
}

// Requests

static enum operation operation_of(uint8_t opcode)
{
	switch (opcode) {
	case SEND: case SEND_IMMEDIATE: case SEND_INVALIDATE: return OP_SEND;
	case WRITE: case WRITE_IMMEDIATE: return OP_WRITE;
	case READ: return OP_READ;
	case COMPARE_SWAP: return OP_COMPARE_SWAP;
	case FETCH_ADD: return OP_FETCH_ADD;
	}
	refuse("send request of opcode", opcode);
	return OP_UNKNOWN;
}

static struct piece piece_of(const struct data *d) { return (struct piece){d->address, d->length, d->key}; }

// read_data reads SGEs or inline data.
static void read_data(struct request *r, const struct send *s, const uint8_t *at)
{
	uint32_t count = s->first >> COUNT_AT, room = (const uint8_t *)(s + 1) - at;
	if (count * (s->first & INLINE ? 1 : sizeof(struct data)) > room) {
		refuse("a request with data of length", count);
		r->operation = OP_UNKNOWN;
	} else if (s->first & INLINE) {
		memcpy(r->data, at, r->inlined = count);
	} else {
		for (r->pieces = 0; r->pieces < (int)count; at += sizeof(struct data))
			r->piece[r->pieces++] = piece_of((const struct data *)at);
	}
}

static uint64_t sink(const struct send *s) { return (uint64_t)s->high << 32 | s->low; }

bool erdma_next_send(struct qp *qp, struct request *r)
{
	struct send s = {0};
	if ((uint16_t)word(&qp->bells, 0) == qp->sq_head)
		return false;
	for (int i = 0; i < BLOCKS; i++)
		memcpy((uint8_t *)&s + i * SEND_BLOCK,
			qp->sq + (size_t)((qp->sq_head + i) & (qp->sq_blocks - 1)) * SEND_BLOCK, SEND_BLOCK);
	memset(r, 0, offsetof(struct request, data));
	r->opcode = s.first >> OPCODE_AT & 0x1f, r->index = qp->sq_head;
	r->blocks = (s.first >> BLOCKS_AT & MOST_BLOCKS) + 1;
	r->operation = r->blocks > BLOCKS ? OP_UNKNOWN : operation_of(r->opcode);
	r->signaled = s.first & SIGNALED, r->solicited = s.first & SOLICITED;
	r->with_immediate = r->opcode == SEND_IMMEDIATE || r->opcode == WRITE_IMMEDIATE;
	r->with_invalidate = r->opcode == SEND_INVALIDATE;
	r->immediate = s.immediate;
	switch (r->operation) {
	case OP_SEND:
		read_data(r, &s, s.data);
		break;
	case OP_WRITE:
		r->remote = sink(&s), r->remote_key = s.key;
		read_data(r, &s, s.more);
		break;
	case OP_READ: // the sink is local
		r->remote = s.list[0].address, r->remote_key = s.list[0].key;
		r->piece[r->pieces++] = (struct piece){sink(&s), s.length, s.key};
		break;
	case OP_COMPARE_SWAP: case OP_FETCH_ADD:
		r->swap = s.swap, r->compare = s.compare;
		r->remote = s.list[0].address, r->remote_key = s.list[0].key;
		r->piece[r->pieces++] = piece_of(&s.list[1]);
		break;
	default:
		break;
	}
	return true;
}

// A receive has one SGE, or none; then its key and address are stale.
bool erdma_next_receive(struct qp *qp, struct receive *r)
{
	struct room room;
	if ((uint16_t)word(&qp->bells, 1) == qp->rq_head)
		return false;
	memcpy(&room, qp->rq + (size_t)(qp->rq_head & (qp->rq_wqes - 1)) * RECEIVE, sizeof room);
	r->index = qp->rq_head;
	r->pieces = room.length > 0;
	r->piece[0] = (struct piece){room.address, room.length, room.key};
	return true;
}

void erdma_consume_receive(struct qp *qp, const struct receive *r) { (void)r, qp->rq_head++; }

// Completions

enum { OF_RECEIVE = 1 << 8, KIND_AT = 16 };
static const uint32_t OWNER = 1u << 31;

static const uint8_t of_sends[] = {
	[LOCAL_LENGTH] = 14, [LOCAL_OPERATION] = 8, [LOCAL_PROTECTION] = 10, [FLUSHED] = 15, [REMOTE_INVALID] = 4,
	[REMOTE_ACCESS] = 3, [REMOTE_OPERATION] = 1, [RETRIES] = 16, [RNR_RETRIES] = 16,
};
static const uint8_t of_receives[] = {[LOCAL_LENGTH] = 7, [LOCAL_PROTECTION] = 3, [FLUSHED] = 15};

static uint8_t status_of(const struct completion *c)
{
	uint8_t status = c->receive ? c->status < sizeof of_receives ? of_receives[c->status] : 0 :
		c->status < sizeof of_sends ? of_sends[c->status] : 0;
	return status || c->status == OK ? status : 1;
}

static uint32_t kind_of(const struct completion *c)
{
	if (!c->receive)
		return c->request->opcode;
	if (!c->request)
		return RECEIVED;
	if (c->request->operation == OP_WRITE)
		return RECEIVED_WRITE;
	return c->request->with_invalidate ? RECEIVED_INVALIDATE : c->request->with_immediate ? RECEIVED_IMMEDIATE : RECEIVED;
}

// The program's progress is unknown until it requests an event, so the queue cannot overrun.
bool erdma_complete(struct cq *cq, const struct completion *c)
{
	struct entry *slot = (struct entry *)cq->buffer + (cq->produced & (cq->entries - 1));
	uint32_t first = kind_of(c) << KIND_AT | (c->receive ? OF_RECEIVE : 0) | status_of(c);
	struct entry e = {
		.index = htobe32(c->receive ? c->receive->index : c->request->index), .qp = htobe32(c->qp->number),
		.length = htobe32(c->length),
	};
	if (c->receive && c->request && c->request->with_immediate)
		e.immediate = be32toh(c->request->immediate);
	memcpy((uint8_t *)slot + sizeof first, (uint8_t *)&e + sizeof first, sizeof e - sizeof first);
	bool owner = !(cq->produced++ & cq->entries);
	__atomic_store_n(&slot->first, htobe32(first | (owner ? OWNER : 0)), __ATOMIC_RELEASE);
	if (c->status != OK || c->receive && c->request->solicited)
		cq->solicited = cq->produced;
	return true;
}

// The record has a number that liberdma increments with each request.
bool erdma_take_request(struct cq *cq)
{
	enum { ASKED = 31, SOLICITED_ALONE = 30, NUMBER_AT = 56 };
	uint64_t w = __atomic_load_n((uint64_t *)cq->record, __ATOMIC_ACQUIRE);
	uint32_t number = w >> NUMBER_AT, last = w >> SOLICITED_ALONE & 1 ? cq->solicited : cq->produced;
	if (!(w >> ASKED & 1) || number == cq->told || (int32_t)((last - (uint32_t)w) << 8) <= 0)
		return false;
	cq->told = number;
	return true;
}
