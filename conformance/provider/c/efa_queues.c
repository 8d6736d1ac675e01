// SPDX-License-Identifier: BSD-2-Clause

// Doorbells and queues of an EFA adapter as libefa uses them. Numbers are little-endian. The layouts are the adapter's;
// no public header has them.
#include <string.h>

#include "efa.h"

// A send: its kind, and its data or SGEs.
struct send {
	uint16_t id;
	uint8_t operation, flags;
	uint16_t to_qp, length; // of the inline data, or of the list
	uint32_t immediate;
	uint16_t address;
	uint8_t hints, unused;
	uint32_t key;
	uint8_t unused_too[6], more_id[6];
	uint8_t data[];
};

enum { SEND_MESSAGE, RDMA_READ, RDMA_WRITE, OPERATION = 0xf, HAS_IMMEDIATE = 0x10, INLINE = 0x20, IS_SEND = 0x80 };
enum { FIRST = 4, LAST = 8, SIGNALED = 16 };

struct data {
	uint32_t length, key, low, high;
};

struct room {
	uint32_t low, high;
	uint16_t id, length;
	uint32_t key_and_flags;
};

enum { KEY = 0xffffff, ROOM_FIRST = 1 << 30, ROOM_LAST = 1u << 31 };

struct entry {
	uint16_t id;
	uint8_t status, flags;
	uint16_t qp;
	union {
		uint8_t more_id[6]; // for a send
		struct {
			uint16_t length, address, from;
		};
	};
	uint32_t immediate;
	union {
		uint16_t length_high;
		uint8_t from_gid[16]; // if the address is unknown
	};
};
_Static_assert(sizeof(struct send) == 32 && sizeof(struct room) == 16 && sizeof(struct entry) == 32, "as the adapter");

enum { PHASE = 1, OF_SEND = 1 << 1, OF_RECEIVE = 2 << 1, WITH_IMMEDIATE = 8, OPERATION_AT = 4, UNSOLICITED = 0x80 };
enum { ASKED = 1u << 31, NUMBER_AT = 29 };

// Doorbells

static uint32_t bell(const struct mapping *m, int word)
{
	return __atomic_load_n((uint32_t *)m->at + word, __ATOMIC_ACQUIRE);
}

static bool any;

static void look_at_qp(void *o)
{
	struct qp *qp = o;
	uint16_t receives = bell(&qp->bells, 1);
	any |= (uint16_t)bell(&qp->bells, 0) != qp->sq_head || receives != qp->seen;
	qp->seen = receives;
}

static uint16_t unread(const struct cq *cq) { return cq->produced - bell(&cq->bell, EFA_CQ_BELL); }

static uint32_t number(uint32_t word) { return word >> NUMBER_AT & 3; }

static void look_at_cq(void *o)
{
	struct cq *cq = o;
	uint32_t word = bell(&cq->bell, EFA_CQ_BELL), n = number(word);
	any |= cq->channel && unread(cq) && n != cq->told && (word & ASKED || n != cq->guessed);
}

bool efa_rung(void)
{
	any = false;
	each(QP, look_at_qp);
	each(CQ, look_at_cq);
	return any;
}

void efa_reset_qp(struct qp *qp)
{
	memset(qp->bells.at, 0, 8);
	qp->seen = 0;
}

// Requests

static struct piece piece_of(const struct data *d)
{
	return (struct piece){(uint64_t)d->high << 32 | d->low, d->length, d->key & KEY};
}

static void read_data(struct request *r, const struct send *s, const uint8_t *at, size_t room)
{
	if (s->operation & INLINE) {
		if (s->length > room)
			r->operation = OP_UNKNOWN;
		else
			memcpy(r->data, at, r->inlined = s->length);
		return;
	}
	if (s->length > 2) {
		r->operation = OP_UNKNOWN;
		return;
	}
	for (r->pieces = 0; r->pieces < s->length; at += sizeof(struct data))
		r->piece[r->pieces++] = piece_of((const struct data *)at);
}

static enum operation operation_of(const struct send *s)
{
	static const enum operation operations[] = {
		[SEND_MESSAGE] = OP_SEND, [RDMA_READ] = OP_READ, [RDMA_WRITE] = OP_WRITE,
	};
	uint8_t o = s->operation & OPERATION;
	if (o < sizeof operations / sizeof *operations && s->operation & IS_SEND && s->flags & FIRST && s->flags & LAST)
		return operations[o];
	refuse("send request of operation", s->operation | s->flags << 8);
	return OP_UNKNOWN;
}

bool efa_next_send(struct qp *qp, struct request *r)
{
	if ((uint16_t)bell(&qp->bells, 0) == qp->sq_head)
		return false;
	struct { struct send s; uint8_t data[96]; } copy;
	const struct send *s = &copy.s;
	memcpy(&copy, qp->sq + (size_t)(qp->sq_head & (qp->sq_blocks - 1)) * qp->entry_size, qp->entry_size);
	memset(r, 0, offsetof(struct request, data));
	r->blocks = 1, r->index = s->id, r->opcode = s->operation & OPERATION;
	memcpy(r->more_index, s->more_id, sizeof r->more_index);
	r->operation = operation_of(s);
	r->signaled = s->flags & SIGNALED;
	r->with_immediate = s->operation & HAS_IMMEDIATE, r->immediate = s->immediate;
	r->to_qp = s->to_qp, r->to_key = s->key;
	const uint8_t *at = copy.data, *end = copy.data + qp->entry_size - sizeof *s;
	if (r->operation == OP_READ || r->operation == OP_WRITE) {
		struct piece remote = piece_of((const struct data *)at);
		r->remote = remote.address, r->remote_key = ((const struct data *)at)->key;
		at += sizeof(struct data);
	}
	read_data(r, s, at, end - at);
	bool here;
	if (!efa_address_is_local(qp, s->address, &here))
		r->operation = OP_UNKNOWN;
	else
		r->elsewhere = !here;
	return true;
}

bool efa_next_receive(struct qp *qp, struct receive *r)
{
	uint16_t end = bell(&qp->bells, 1);
	for (r->pieces = 0; r->pieces < PIECES && (uint16_t)(qp->rq_head + r->pieces) != end;) {
		uint32_t place = (qp->rq_head + r->pieces) & (qp->rq_wqes - 1);
		const struct room *room = (void *)(qp->rq + (size_t)place * RECEIVE_SIZE);
		if (room->key_and_flags & ROOM_FIRST)
			r->index = room->id;
		r->piece[r->pieces++] =
			(struct piece){(uint64_t)room->high << 32 | room->low, room->length, room->key_and_flags & KEY};
		if (room->key_and_flags & ROOM_LAST)
			return true;
	}
	return false;
}

void efa_consume_receive(struct qp *qp, const struct receive *r) { qp->rq_head += r->pieces; }

// Completions

static const uint8_t statuses[] = {
	[FLUSHED] = 1, [LOCAL_OPERATION] = 3, [LOCAL_PROTECTION] = 5, [LOCAL_LENGTH] = 6, [REMOTE_ACCESS] = 7,
	[REMOTE_OPERATION] = 8, [NOBODY] = 9, [RNR_RETRIES] = 10, [REMOTE_INVALID] = 11, [STRANGER] = 14, [RETRIES] = 15,
};

static uint8_t status_of(enum status s) { return s < sizeof statuses ? statuses[s] : 2; }

// put_receive fills in a receive and its source.
static void put_receive(struct entry *e, const struct completion *c)
{
	e->id = c->receive->index;
	e->length = c->length;
	if (c->receive->unsolicited)
		e->flags |= UNSOLICITED;
	if (!c->request)
		return;
	if (c->request->with_immediate)
		e->flags |= WITH_IMMEDIATE, e->immediate = c->request->immediate;
	e->flags |= c->request->opcode << OPERATION_AT;
	e->from = c->from->number;
	e->address = efa_address_of(c->qp->pd);
	if (c->request->opcode == RDMA_WRITE)
		e->length_high = c->length >> 16;
	else if (e->address == UNKNOWN_ADDRESS)
		memcpy(e->from_gid, driver->gids[0].raw, sizeof e->from_gid);
}

bool efa_complete(struct cq *cq, const struct completion *c)
{
	if (unread(cq) >= cq->entries)
		return false;
	struct entry e = {.status = status_of(c->status), .qp = c->qp->number, .flags = c->receive ? OF_RECEIVE : OF_SEND};
	if (c->receive) {
		put_receive(&e, c);
	} else {
		e.id = c->request->index, e.flags |= c->request->opcode << OPERATION_AT;
		memcpy(e.more_id, c->request->more_index, sizeof e.more_id);
	}
	uint32_t part = c->receive ? cq->parts - 1 : 0, written = cq->written[part]++;
	size_t place = part * cq->entries + (written & (cq->entries - 1));
	struct entry *slot = (void *)(cq->buffer + place * cq->entry_size);
	uint8_t last = e.flags | !(written / cq->entries & 1);
	e.flags = slot->flags; // written last: the phase makes the entry valid
	memcpy(slot, &e, cq->entry_size);
	__atomic_store_n(&slot->flags, last, __ATOMIC_RELEASE);
	cq->produced++;
	return true;
}

// The word has a sequence number, which libefa increments with each event that it reads, and a request bit. The
// doorbell of a later poll may overwrite a request before it was seen. Therefore, if completions stay unpolled for a
// while, one event is raised speculatively for each sequence number, and another one if a request appears afterwards.
bool efa_take_request(struct cq *cq)
{
	enum { A_WHILE = 10000 };
	uint32_t word = bell(&cq->bell, EFA_CQ_BELL);
	if (number(word) == ((cq->guessed + 1) & 3))
		cq->told = cq->guessed; // libefa has read the speculative event and incremented its number
	if (number(word) == cq->told || !unread(cq)) {
		cq->since = 0;
		return false;
	}
	if (!(word & ASKED)) {
		if (!cq->since || cq->seen != word)
			cq->since = now(), cq->seen = word;
		bool due = cq->guessed != number(word) && now() - cq->since >= A_WHILE;
		if (due)
			cq->guessed = number(word);
		return due;
	}
	cq->told = cq->guessed = number(word);
	return true;
}
