// SPDX-License-Identifier: BSD-2-Clause

#include "stub.h"

struct stub_log stub_log;
struct stub_script stub_scripts[STUB_IDS];
uint64_t stub_object[512];

enum { LONGEST = 4096, /* work requests of a list, and elements of an array, that are recorded */ };

struct out { /* counts first, then writes */
	uint8_t *at;
	size_t size;
};

static void put(struct out *o, const void *from, size_t size)
{
	if (o->at)
		memcpy(o->at + o->size, from, size);
	o->size += size;
}

/* Memory behind an address is recorded only if the test declared it readable. */
static bool readable(uint64_t address, uint64_t size)
{
	return address >= stub_log.from && address <= stub_log.to && size <= stub_log.to - address;
}

static void put_readable(struct out *o, uint64_t address, uint64_t size)
{
	if (readable(address, size))
		put(o, (const void *)(uintptr_t)address, size);
}

static void put_sges(struct out *o, const struct ibv_sge *sge, int64_t count, bool contents)
{
	if (!sge || count < 0 || count > LONGEST)
		return;
	for (int64_t i = 0; i < count; i++) {
		struct ibv_sge copy = sge[i];
		bool known = contents && readable(copy.addr, copy.length);

		if (known) /* compare contents, not addresses */
			copy.addr = 0;
		put(o, &copy, sizeof(copy));
		if (known)
			put_readable(o, sge[i].addr, copy.length);
	}
}

static void put_send(struct out *o, const struct ibv_send_wr *wr)
{
	for (int n = 0; wr && n < LONGEST; n++, wr = wr->next) {
		union {
			struct ibv_send_wr wr;
			uint8_t bytes[sizeof(struct ibv_send_wr)];
		} copy;

		memcpy(copy.bytes, wr, sizeof(*wr)); /* padding, too */
		copy.wr.next = (void *)(uintptr_t)(wr->next != NULL);
		copy.wr.sg_list = (void *)(uintptr_t)(wr->sg_list != NULL);
		if (wr->opcode == IBV_WR_TSO)
			copy.wr.tso.hdr = (void *)(uintptr_t)(wr->tso.hdr != NULL);
		put(o, copy.bytes, sizeof(copy));
		put_sges(o, wr->sg_list, wr->num_sge, wr->send_flags & IBV_SEND_INLINE);
		if (wr->opcode == IBV_WR_TSO)
			put_readable(o, (uintptr_t)wr->tso.hdr, wr->tso.hdr_sz);
	}
}

static void put_recv(struct out *o, const struct ibv_recv_wr *wr)
{
	for (int n = 0; wr && n < LONGEST; n++, wr = wr->next) {
		union {
			struct ibv_recv_wr wr;
			uint8_t bytes[sizeof(struct ibv_recv_wr)];
		} copy;

		memcpy(copy.bytes, wr, sizeof(*wr));
		copy.wr.next = (void *)(uintptr_t)(wr->next != NULL);
		copy.wr.sg_list = (void *)(uintptr_t)(wr->sg_list != NULL);
		put(o, copy.bytes, sizeof(copy));
		put_sges(o, wr->sg_list, wr->num_sge, false);
	}
}

static void put_ops(struct out *o, const struct ibv_ops_wr *wr)
{
	for (int n = 0; wr && n < LONGEST; n++, wr = wr->next) {
		union {
			struct ibv_ops_wr wr;
			uint8_t bytes[sizeof(struct ibv_ops_wr)];
		} copy;

		memcpy(copy.bytes, wr, sizeof(*wr));
		copy.wr.next = (void *)(uintptr_t)(wr->next != NULL);
		copy.wr.tm.add.sg_list = (void *)(uintptr_t)(wr->tm.add.sg_list != NULL);
		put(o, copy.bytes, sizeof(copy));
		put_sges(o, wr->tm.add.sg_list, wr->tm.add.num_sge, false);
	}
}

static void put_bufs(struct out *o, const struct ibv_data_buf *buf, uint64_t count)
{
	for (uint64_t i = 0; buf && count <= LONGEST && i < count; i++) {
		put(o, &buf[i].length, sizeof(buf[i].length));
		put_readable(o, (uintptr_t)buf[i].addr, buf[i].length);
	}
}

static void put_next(struct out *o, const struct ibv_qp_ex *qp)
{
	put(o, &qp->wr_id, sizeof(qp->wr_id));
	put(o, &qp->wr_flags, sizeof(qp->wr_flags));
}

static void put_contents(struct out *o, const char *kinds, const uint64_t *args)
{
	for (int i = 0; kinds[i]; i++) {
		void *p = (void *)(uintptr_t)args[i];

		switch (kinds[i]) {
		case 's': put_send(o, p); break;
		case 'r': put_recv(o, p); break;
		case 'o': put_ops(o, p); break;
		case 'g': if (readable(args[i], args[i - 1] * sizeof(struct ibv_sge))) put_sges(o, p, args[i - 1], false); break;
		case 'd': if (readable(args[i], args[i - 1] * sizeof(struct ibv_data_buf))) put_bufs(o, p, args[i - 1]); break;
		case 'i': put_readable(o, args[i], args[i + 1]); break;
		case 'q': put_next(o, p); break;
		case 'c': put(o, p, p ? strlen(p) + 1 : 0); break;
		}
	}
}

static void record(uint32_t id, const char *kinds, const uint64_t *args)
{
	struct stub_record r = { .id = id, .args = strlen(kinds) };
	struct out contents = { 0 }, o = { 0 };
	uint64_t place;

	put_contents(&contents, kinds, args);
	r.bytes = contents.size;
	r.size = (sizeof(r) + 8 * r.args + r.bytes + 7) & ~7u;
	place = __atomic_fetch_add(&stub_log.used, r.size, __ATOMIC_RELAXED);
	if (place + r.size > stub_log.capacity)
		return;
	o.at = (uint8_t *)(uintptr_t)stub_log.records + place;
	put(&o, &r, sizeof(r));
	for (uint32_t i = 0; i < r.args; i++) {
		uint64_t a = strchr("vpq", kinds[i]) ? args[i] : args[i] != 0;

		put(&o, &a, sizeof(a));
	}
	put_contents(&o, kinds, args);
	memset(o.at + o.size, 0, r.size - o.size);
}

static void point_bad(uint64_t list, uint64_t to, int kind, int32_t bad)
{
	void **where = (void **)(uintptr_t)to;
	void *wr = (void *)(uintptr_t)list;

	if (bad == STUB_BAD_KEEP || !where)
		return;
	if (bad == STUB_BAD_NULL)
		wr = NULL;
	for (int32_t i = STUB_BAD_AT; wr && i < bad; i++) {
		switch (kind) {
		case 's': wr = ((struct ibv_send_wr *)wr)->next; break;
		case 'r': wr = ((struct ibv_recv_wr *)wr)->next; break;
		default: wr = ((struct ibv_ops_wr *)wr)->next; break;
		}
	}
	*where = wr;
}

uint64_t stub_call(uint32_t id, const char *kinds, const uint64_t *args, uint64_t result)
{
	struct stub_script *script = &stub_scripts[id];
	const struct stub_result *r;
	uint32_t count = script->count, turn;

	if (stub_log.recording) {
		__atomic_fetch_add(&stub_log.calls, 1, __ATOMIC_RELAXED);
		record(id, kinds, args);
	}
	if (!count)
		return result;
	turn = count > 1 ? __atomic_fetch_add(&script->next, 1, __ATOMIC_RELAXED) : 0;
	r = &script->results[turn < count ? turn : count - 1];
	for (int i = 0; kinds[i]; i++)
		if (kinds[i] == 'b')
			point_bad(args[i - 1], args[i], kinds[i - 1], r->bad);
	for (uint64_t i = 0; i < r->pokes; i++)
		if (args[r->poke[i].arg])
			memcpy((uint8_t *)(uintptr_t)args[r->poke[i].arg] + r->poke[i].offset, (const void *)(uintptr_t)r->poke[i].from, r->poke[i].length);
	if (r->error)
		errno = r->error;
	return r->value;
}
