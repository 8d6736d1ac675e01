// SPDX-License-Identifier: BSD-2-Clause

// Tag matching of shared receive queues as described in rdma-core's Documentation/tag_matching.md: a list of tags with
// buffers, which the program changes by requests to an internal queue pair of libmlx5; messages that match a tag; and
// rendezvous, whose data the adapter reads before it notifies the sender.
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"

// Headers of messages, in network order.
struct headers {
	struct tag_header tag;
	struct { uint64_t address; uint32_t key, length; } data; // for a rendezvous
};

enum { NO_TAG = 0, RENDEZVOUS = 1, FINISHED = 2, EAGER = 3 };

struct tag {
	uint16_t place; // index known to the program
	bool held;      // inactive until the program has seen all unexpected messages
	uint64_t tag, mask;
	struct piece piece;
};

struct tags {
	uint32_t most, n;
	uint16_t tail; // index of the next one
	uint16_t unexpected, told; // unexpected messages, and how many the program has reported as seen
	struct tag list[]; // in matching order
};

// Announced data that has not been read, or whose sender has not been notified.
struct rendezvous {
	struct rendezvous *next;
	struct headers headers;
	struct piece piece;
	uint16_t place;
	bool solicited, read;
};

struct tags *new_tags(uint32_t most)
{
	struct tags *t = calloc(1, sizeof *t + most * sizeof *t->list);
	if (t)
		t->most = most;
	return t;
}

static void tell_tags(struct tags *t, uint16_t count)
{
	t->told = count;
	for (uint32_t i = 0; i < t->n && t->told == t->unexpected; i++)
		t->list[i].held = false;
}

static struct tag take_tag(struct tags *t, uint32_t at)
{
	struct tag taken = t->list[at];
	memmove(t->list + at, t->list + at + 1, (--t->n - at) * sizeof taken);
	return taken;
}

static bool remove_tag(struct tags *t, uint16_t place)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->list[i].place == place) {
			take_tag(t, i);
			return true;
		}
	return false;
}

// change_tags executes an operation on the list.
enum status change_tags(struct qp *qp, const struct request *r)
{
	const struct tag_operation *o = &r->tags;
	struct srq *srq = qp->srq;
	struct tags *t = srq->tags;
	struct tagged result = {.kind = o->kind, .place = o->place, .done = true};
	if (o->kind == TAG_ADDED && (t->n == t->most || o->place > t->most || r->pieces > 1))
		return LOCAL_OPERATION;
	if (o->counted)
		tell_tags(t, o->seen);
	if (o->kind == TAG_ADDED) {
		t->list[t->n++] = (struct tag){
			.place = t->tail, .tag = o->tag, .mask = o->mask, .held = t->told != t->unexpected,
			.piece = r->pieces ? r->piece[0] : (struct piece){0},
		};
		t->tail = o->place;
	}
	if (o->kind == TAG_REMOVED)
		result.done = remove_tag(t, o->place);
	result.unexpected = t->unexpected;
	if (o->signaled)
		complete(srq->cq, &(struct completion){.qp = qp, .request = r, .tagged = &result});
	return OK;
}

static struct tag *match(struct tags *t, uint64_t tag)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (!t->list[i].held && (tag & t->list[i].mask) == t->list[i].tag)
			return &t->list[i];
	return NULL;
}

// without returns the memory after its first bytes.
static struct memory without(const struct memory *m, uint32_t first)
{
	struct memory rest = {0};
	for (int i = 0; i < m->n; i++) {
		uint32_t skip = first < m->part[i].n ? first : m->part[i].n;
		add(&rest, m->part[i].p + skip, m->part[i].n - skip);
		first -= skip;
	}
	return rest;
}

// arrived completes a receive by a tag, completely or partially.
static void arrived(struct qp *qp, const struct request *r, const struct tagged *tagged, uint32_t length,
	const uint8_t *inside)
{
	struct completion c = {
		.qp = qp, .request = r, .receive = &(struct receive){0}, .tagged = tagged, .length = length, .inside = inside,
	};
	complete(qp->srq->cq, &c);
}

// place_data stores data in a tag's buffer. A 128-byte completion carries up to 64 bytes, and libmlx5 checks whether
// they fit the tag.
static enum status place_data(struct qp *qp, struct tag *tag, const struct memory *data, uint8_t inside[64], bool *small)
{
	struct qp owner = *qp;
	struct memory to = {0};
	owner.pd = qp->srq->pd;
	*small = qp->scatter == 64 && data->total && data->total <= 64;
	if (*small)
		add(&to, inside, 64);
	else if (tag->piece.length < data->total)
		return REMOTE_INVALID;
	else if (tag->piece.length && !open_all(&to, &owner, &tag->piece, 1, IBV_ACCESS_LOCAL_WRITE))
		return REMOTE_OPERATION;
	move(&to, 0, data, data->total);
	return OK;
}

static enum status eager(struct qp *peer, const struct qp *from, const struct request *r, const struct headers *h,
	struct tag *tag, const struct memory *data)
{
	struct tags *t = peer->srq->tags;
	struct tagged what = {.kind = TAG_MESSAGE, .place = tag->place, .header = &h->tag};
	uint8_t inside[64];
	bool small;
	enum status status = place_data(peer, tag, data, inside, &small);
	if (status != OK)
		return refused(peer, status);
	take_tag(t, tag - t->list);
	bool packets = data->total + sizeof h->tag > 128u << from->attr.path_mtu;
	if (packets) { // it matches before the data is complete
		what.kind = TAG_MATCHED;
		arrived(peer, &(struct request){.operation = OP_SEND}, &what, data->total, NULL);
		what.kind = TAG_DATA;
	}
	arrived(peer, r, &what, data->total, small ? inside : NULL);
	return OK;
}

static enum status announced(struct qp *peer, const struct request *r, const struct headers *h, struct tag *tag)
{
	struct tags *t = peer->srq->tags;
	struct tagged what = {.kind = TAG_MATCHED, .place = tag->place, .header = &h->tag};
	uint32_t length = be32toh(h->data.length);
	if (length > tag->piece.length) { // the program continues with both headers
		struct memory headers = {0};
		uint8_t inside[64];
		bool small;
		add(&headers, (uint8_t *)h, sizeof *h);
		enum status status = place_data(peer, tag, &headers, inside, &small);
		if (status != OK)
			return refused(peer, status);
		take_tag(t, tag - t->list);
		what.kind = TAG_LONGER;
		arrived(peer, r, &what, sizeof *h, small ? inside : NULL);
		return OK;
	}
	struct rendezvous *new = calloc(1, sizeof *new), **at = &peer->rendezvous;
	if (!new)
		return refused(peer, REMOTE_OPERATION);
	new->headers = *h, new->piece = tag->piece, new->piece.length = length;
	new->place = tag->place, new->solicited = r->solicited;
	take_tag(t, tag - t->list);
	arrived(peer, &(struct request){.operation = OP_SEND}, &what, length, NULL);
	while (*at)
		at = &(*at)->next;
	*at = new;
	return OK;
}

// land_tagged stores a message in the buffer of the matching tag, or else of the next receive.
enum status land_tagged(struct qp *peer, struct qp *from, const struct request *r, const struct memory *payload)
{
	enum { MOST_OF_RENDEZVOUS = 64 };
	struct tags *t = peer->srq->tags;
	struct headers h = {0};
	struct memory to = {0};
	add(&to, (uint8_t *)&h, sizeof h);
	move(&to, 0, payload, sizeof h);
	uint64_t size = payload->total;
	bool of_tag = size >= sizeof h.tag && (h.tag.kind == EAGER ||
		h.tag.kind == RENDEZVOUS && size >= sizeof h && size <= MOST_OF_RENDEZVOUS);
	struct tag *tag = of_tag ? match(t, be64toh(h.tag.tag)) : NULL;
	if (!tag) {
		struct tagged what = {.kind = of_tag ? TAG_UNEXPECTED : TAG_NONE};
		enum status status = land(peer, from, r, payload, &what);
		t->unexpected += of_tag && status == OK;
		return status;
	}
	if (r->with_invalidate && !invalidate(peer, r->immediate))
		return refused(peer, REMOTE_ACCESS);
	struct memory data = without(payload, sizeof h.tag);
	return h.tag.kind == EAGER ? eager(peer, from, r, &h, tag, &data) : announced(peer, r, &h, tag);
}

// read_announced reads the data of a rendezvous.
static enum status read_announced(struct qp *qp, struct rendezvous *v)
{
	struct request read = {
		.operation = OP_READ, .solicited = v->solicited, .remote = be64toh(v->headers.data.address),
		.remote_key = be32toh(v->headers.data.key), .pieces = v->piece.length != 0, .piece = {v->piece},
	};
	struct tagged what = {.kind = TAG_DATA, .place = v->place};
	uint32_t length;
	struct pd *own = qp->pd;
	qp->pd = qp->srq->pd;
	enum status status = carry_out(qp, &read, &length);
	qp->pd = own;
	if (status != OK)
		return status;
	v->read = true;
	read.operation = OP_SEND;
	arrived(qp, &read, &what, length, NULL);
	return OK;
}

// send_fin sends a FIN with the headers to the sender of a rendezvous.
static enum status send_fin(struct qp *qp, const struct rendezvous *v)
{
	struct request r = {.operation = OP_SEND, .inlined = sizeof v->headers};
	uint32_t length;
	memcpy(r.data, &v->headers, sizeof v->headers);
	r.data[0] = FINISHED;
	return carry_out(qp, &r, &length);
}

static void end_rendezvous(struct qp *qp)
{
	struct rendezvous *v = qp->rendezvous;
	struct tagged what = {.kind = TAG_CANCELED, .place = v->place};
	if (!v->read && qp->attr.qp_state != IBV_QPS_RESET)
		arrived(qp, &(struct request){.operation = OP_SEND, .solicited = true}, &what, 0, NULL);
	qp->rendezvous = v->next;
	free(v);
}

void drop_rendezvous(struct qp *qp)
{
	while (qp->rendezvous)
		end_rendezvous(qp);
}

// run_rendezvous advances all of them, and reports whether all have ended.
bool run_rendezvous(struct qp *qp)
{
	while (qp->rendezvous && qp->attr.qp_state == IBV_QPS_RTS) {
		struct rendezvous *v = qp->rendezvous;
		enum status status = v->read ? OK : read_announced(qp, v);
		if (status == OK)
			status = send_fin(qp, v);
		if ((status == AGAIN || status == RETRIES) && may_retry(qp, status))
			return false;
		qp->deadline = 0;
		if (status == OK)
			end_rendezvous(qp);
		else
			fail_qp(qp);
	}
	return !qp->rendezvous;
}
