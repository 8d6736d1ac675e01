/* Slots of a device that counts what it is given, and completes what is signalled, in order. The structures are as far as the
 * slots look into them. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct wr {
	uint64_t id;
	struct wr *next;
	void *sges;
	int32_t sge_count;
	uint32_t opcode;
	uint32_t flags;
	uint32_t rest[23];
};

struct recv_wr {
	uint64_t id;
	struct recv_wr *next;
};

struct wc {
	uint64_t id;
	uint32_t rest[10];
};

enum { SIGNALED = 2, DEPTH = 1 << 16, ENOMEM = 12 };

#define REFUSED UINT64_MAX /* the id of a request that is not taken */

static uint64_t completed[DEPTH];
static uint32_t head, tail, lock;
uint64_t device_posted;
uint32_t device_opcode; /* of the completions that are polled */

static void enter(void)
{
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
		;
}

static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

int device_post_send(void *qp, struct wr *wr, struct wr **bad)
{
	enter();
	for (; wr; wr = wr->next) {
		if (wr->id == REFUSED) {
			*bad = wr;
			leave();
			return ENOMEM;
		}
		device_posted++;
		if (wr->flags & SIGNALED)
			completed[head++ % DEPTH] = wr->id;
	}
	leave();
	return 0;
}

int device_post_recv(void *qp, struct recv_wr *wr, struct recv_wr **bad)
{
	for (; wr; wr = wr->next)
		device_posted++;
	return 0;
}

int device_poll_cq(void *cq, int n, struct wc *wc)
{
	int got = 0;

	enter();
	for (; got < n && tail != head; got++) {
		memset(&wc[got], 0, sizeof(wc[got]));
		wc[got].id = completed[tail++ % DEPTH];
		wc[got].rest[1] = device_opcode;
		wc[got].rest[5] = 0x12; /* qp_num */
	}
	leave();
	return got;
}

int device_req_notify_cq(void *cq, int solicited_only) { return solicited_only ? 22 : 0; }

/* The library as rdma-core 44.0 would be: it has what came with ibv_wr_atomic_write, and not what came with ibv_wr_flush. */
int ibv_import_dm(void) { return 0; }

/* ibv_wr_* of an extended queue pair: they keep a digest of everything that they are given, in order. */
size_t device_wr_id_at; /* where wr_id lies in the queue pair; wr_flags follows */
uint64_t device_wr_digest;
static uint64_t building[DEPTH];
static int built, refused;

static void digest(uint64_t v) { device_wr_digest = (device_wr_digest ^ v) * 0x100000001b3 + 1; }

static void begin(char *qp, int opcode)
{
	uint64_t id;
	uint32_t flags;

	memcpy(&id, qp + device_wr_id_at, sizeof(id));
	memcpy(&flags, qp + device_wr_id_at + sizeof(id), sizeof(flags));
	digest(opcode);
	digest(id);
	digest(flags);
	refused |= id == REFUSED;
	if (flags & SIGNALED)
		building[built++] = id;
}

void device_wr_start(char *qp)
{
	enter();
	built = refused = 0;
	digest((uintptr_t)qp);
}

void device_wr_send(char *qp) { begin(qp, 1); }

void device_wr_send_imm(char *qp, uint32_t imm)
{
	begin(qp, 2);
	digest(imm);
}

void device_wr_rdma_write(char *qp, uint32_t rkey, uint64_t remote)
{
	begin(qp, 3);
	digest(rkey);
	digest(remote);
}

void device_wr_rdma_write_imm(char *qp, uint32_t rkey, uint64_t remote, uint32_t imm)
{
	begin(qp, 4);
	digest(rkey);
	digest(remote);
	digest(imm);
}

void device_wr_atomic_cmp_swp(char *qp, uint32_t rkey, uint64_t remote, uint64_t compare, uint64_t swap)
{
	begin(qp, 5);
	digest(rkey);
	digest(remote);
	digest(compare);
	digest(swap);
}

void device_wr_set_sge(char *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
	digest(lkey);
	digest(address);
	digest(length);
}

void device_wr_set_sge_list(char *qp, size_t n, const uint64_t *list)
{
	for (digest(n); n--; list += 2) {
		digest(list[0]);
		digest(list[1]);
	}
}

void device_wr_set_inline_data(char *qp, const char *data, size_t n)
{
	digest(n);
	while (n--)
		digest(*data++);
}

int device_wr_complete(char *qp)
{
	if (!refused) {
		device_posted++;
		for (int i = 0; i < built; i++)
			completed[head++ % DEPTH] = building[i];
	}
	leave();
	return refused ? ENOMEM : 0;
}
