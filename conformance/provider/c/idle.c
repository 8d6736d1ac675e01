// SPDX-License-Identifier: BSD-2-Clause

// Idle adapters: their providers open them, create objects, and fill queues that nothing processes.
#include <string.h>
#include <sys/mman.h>

#include "idle.h"

const struct ib_uverbs_query_port_resp roce_port = {ROCE_PORT, .port_cap_flags = IBV_PORT_IP_BASED_GIDS};

const struct gid roce_gids[2] = {
	{{0xfe, 0x80, [8] = 0x02, 0x67, 0x6f, 0xff, 0xfe, 0x76, 0x65, 0x72}, IB_UVERBS_GID_TYPE_ROCE_V1},
	{{[10] = 0xff, 0xff, 192, 0, 2, 1}, IB_UVERBS_GID_TYPE_ROCE_V2},
};

bool power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

uint32_t round_up(uint32_t n)
{
	uint32_t r = 1;
	while (r < n)
		r *= 2;
	return r;
}

uint8_t *address(uint64_t a) { return (uint8_t *)(uintptr_t)a; }

struct mapping memory_of(uint64_t at, size_t size) { return (struct mapping){.at = address(at), .size = size}; }

bool new_bells(struct file *f, uint64_t offset)
{
	struct uar *u = new_object(f, UAR, sizeof *u);
	if (!u)
		return false;
	u->offset = offset;
	u->page = map_device(f, offset, PAGE);
	return u->page;
}

void free_bells(struct object *o)
{
	struct uar *u = (struct uar *)o;
	if (o->kind == UAR && u->page)
		munmap(u->page, PAGE);
}

// A doorbell has a queue number or a complete request, which are never all zero.
static bool any;

static void take_bells(void *o)
{
	const struct uar *u = o;
	uint64_t *words = (uint64_t *)u->page;
	for (int i = 0; i < PAGE / 8; i++)
		if (__atomic_load_n(&words[i], __ATOMIC_RELAXED))
			any |= __atomic_exchange_n(&words[i], 0, __ATOMIC_ACQ_REL) != 0;
}

bool bells_rung(void)
{
	any = false;
	each(UAR, take_bells);
	return any;
}

int plain_query_device(struct call *c) { return answer_driver(c, "", 0); }
int plain_pd(struct call *c, struct pd *pd) { return answer_driver(c, &pd->o.handle, sizeof pd->o.handle); }
int plain_ah(struct call *c, struct ah *ah) { return answer_driver(c, &ah->o.handle, sizeof ah->o.handle); }
int no_srq(struct call *c, struct srq *srq) { return (void)c, (void)srq, EOPNOTSUPP; }
int no_methods(struct file *f, struct ib_uverbs_ioctl_hdr *h) { return (void)f, (void)h, EPROTONOSUPPORT; }

int no_resize(struct call *c, struct cq *cq, uint32_t entries)
{
	return (void)c, (void)cq, (void)entries, EOPNOTSUPP;
}

static void record_bells(void *o) { record_words("doorbells", ((struct uar *)o)->page, PAGE); }

void record_queues(const struct qp *qp)
{
	record_words("sends", qp->sends.at, qp->sends.size);
	record_words("receives", qp->receives.at, qp->receives.size);
	record_words("doorbell records", qp->bells.at, qp->bells.size);
	if (still()) // otherwise the device clears them
		each(UAR, record_bells);
}
