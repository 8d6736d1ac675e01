// SPDX-License-Identifier: BSD-2-Clause

// Resolution and queries: addresses and ports, where the device has the addresses of its RoCE v2 GIDs; routes, all of
// which lead to the device itself.
#include <arpa/inet.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/ib.h>
#include <infiniband/sa.h>

#include "ucma.h"

enum { FIRST_PORT = 32768, LAST_PORT = 60999, MOST_BACKLOG = 1024, RATE_EDR = 9, LIFETIME = 16 };

// raw_of converts an address to a GID.
static bool raw_of(const struct sockaddr_storage *a, uint8_t raw[16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
	if (a->ss_family == AF_INET6) {
		memcpy(raw, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
	} else if (a->ss_family == AF_INET) {
		memcpy(raw, mapped, sizeof mapped);
		memcpy(raw + sizeof mapped, &((const struct sockaddr_in *)a)->sin_addr, 4);
	} else {
		return false;
	}
	return true;
}

static bool any(const struct sockaddr_storage *a)
{
	static const uint8_t none[16], mapped[16] = {[10] = 0xff, 0xff};
	uint8_t raw[16];
	return !raw_of(a, raw) || memcmp(raw, a->ss_family == AF_INET ? mapped : none, sizeof raw) == 0;
}

static bool same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	uint8_t x[16], y[16];
	return raw_of(a, x) && raw_of(b, y) && memcmp(x, y, sizeof x) == 0;
}

static int gid_of(const struct sockaddr_storage *a)
{
	uint8_t raw[16];
	if (raw_of(a, raw))
		for (unsigned i = 0; i < driver->gid_count; i++)
			if (driver->gids[i].type == IB_UVERBS_GID_TYPE_ROCE_V2 && memcmp(driver->gids[i].raw, raw, sizeof raw) == 0)
				return i;
	return -1;
}

// port_of returns the port, which is at the same offset for both families.
static uint16_t *port_of(struct sockaddr_storage *a) { return &((struct sockaddr_in *)a)->sin_port; }

static size_t size_of(const struct sockaddr_storage *a)
{
	switch (a->ss_family) {
	case AF_INET: return sizeof(struct sockaddr_in);
	case AF_INET6: return sizeof(struct sockaddr_in6);
	case AF_IB: return sizeof(struct sockaddr_ib);
	}
	return 0;
}

// Requests share their listener's port and do not conflict.
static bool holds_port(const struct cm_id *id)
{
	return id->state == CM_BOUND || id->state == CM_LISTENING || id->state == CM_ADDRESS || id->state == CM_ROUTE;
}

static int conflict(const struct cm_id *id, struct sockaddr_storage *with)
{
	uint32_t at = 0;
	for (struct cm_id *o; (o = next_cm_id(&at));) {
		if (o == id || !holds_port(o) || *port_of(&o->from) != *port_of(with) || o->reuse && id->reuse ||
			o->family_only && id->family_only && o->from.ss_family != with->ss_family)
			continue;
		if (any(with) || any(&o->from))
			return EADDRNOTAVAIL;
		if (same(with, &o->from))
			return EADDRINUSE;
	}
	return 0;
}

static int choose_port(const struct cm_id *id, struct sockaddr_storage *with)
{
	static uint16_t last = FIRST_PORT;
	for (int i = FIRST_PORT; i <= LAST_PORT; i++) {
		last = last >= LAST_PORT ? FIRST_PORT : last + 1;
		*port_of(with) = htons(last);
		if (!conflict(id, with))
			return 0;
	}
	return EADDRNOTAVAIL;
}

static int bind_to(struct cm_id *id, const struct sockaddr_storage *a)
{
	if (id->state != CM_IDLE)
		return EINVAL;
	struct sockaddr_storage with = *a;
	if (a->ss_family == AF_IB) { // librdmacm probes for AF_IB in this way
		if (id->space != RDMA_PS_IB)
			return refuse("address of family", a->ss_family);
		id->from = with, id->state = CM_BOUND;
		return 0;
	}
	int gid = gid_of(a);
	if (gid < 0 && !any(a))
		return EADDRNOTAVAIL;
	if (!id->family_said)
		id->family_only = a->ss_family == AF_INET;
	int err = *port_of(&with) ? conflict(id, &with) : choose_port(id, &with);
	if (err)
		return err;
	id->from = with, id->gid = gid, id->state = CM_BOUND;
	return 0;
}

int cm_bind(struct cm_call *c)
{
	struct rdma_ucm_bind q;
	struct sockaddr_storage a;
	TAKE_CM(c, q);
	memcpy(&a, &q.addr, sizeof a);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	return size_of(&a) && q.addr_size == size_of(&a) ? bind_to(id, &a) : EINVAL;
}

int cm_resolve_addr(struct cm_call *c)
{
	struct rdma_ucm_resolve_addr q;
	struct sockaddr_storage from, to;
	TAKE_CM(c, q);
	memcpy(&from, &q.src_addr, sizeof from);
	memcpy(&to, &q.dst_addr, sizeof to);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	if (to.ss_family != AF_INET && to.ss_family != AF_INET6)
		return refuse("address of family", to.ss_family);
	if (id->state != CM_IDLE && id->state != CM_BOUND)
		return EINVAL;
	if (gid_of(&to) < 0) { // only the device's own addresses are reachable
		queue_event(id, ADDR_ERROR, -ETIMEDOUT, NULL);
		return 0;
	}
	if (!q.src_size || any(&from)) {
		uint16_t port = q.src_size ? *port_of(&from) : 0;
		from = to, *port_of(&from) = port;
	}
	int err = id->state == CM_IDLE ? bind_to(id, &from) : 0;
	if (err)
		return err;
	if (id->gid < 0) { // bound to a port only
		uint16_t port = *port_of(&id->from);
		id->from = to, *port_of(&id->from) = port, id->gid = gid_of(&to);
	}
	id->to = to, id->state = CM_ADDRESS;
	queue_event(id, ADDR_RESOLVED, 0, NULL);
	return 0;
}

int cm_resolve_route(struct cm_call *c)
{
	struct rdma_ucm_resolve_route q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id || id->state != CM_ADDRESS)
		return id ? EINVAL : ENOENT;
	id->state = CM_ROUTE;
	queue_event(id, ROUTE_RESOLVED, 0, NULL);
	return 0;
}

int cm_listen(struct cm_call *c)
{
	struct rdma_ucm_listen q;
	static const struct sockaddr_storage everywhere = {.ss_family = AF_INET};
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	int err = !id ? ENOENT : id->state == CM_IDLE ? bind_to(id, &everywhere) : 0;
	if (err || id->state != CM_BOUND)
		return err ? err : EINVAL;
	id->backlog = q.backlog > 0 && q.backlog < MOST_BACKLOG ? q.backlog : MOST_BACKLOG;
	id->state = CM_LISTENING;
	return 0;
}

// listener_of returns the listener for an ID's destination, preferring one with that address to a wildcard.
struct cm_id *listener_of(const struct cm_id *id)
{
	struct sockaddr_storage to = id->to;
	struct cm_id *found = NULL;
	uint32_t at = 0;
	for (struct cm_id *l; (l = next_cm_id(&at));) {
		if (l->state != CM_LISTENING || *port_of(&l->from) != *port_of(&to))
			continue;
		if (same(&l->from, &to))
			return l;
		if (any(&l->from) && (l->from.ss_family == to.ss_family || !l->family_only))
			found = l;
	}
	return found;
}

// Queries

static void describe(const struct cm_id *id, struct rdma_ucm_query_addr_resp *r)
{
	r->src_size = size_of(&id->from), r->dst_size = size_of(&id->to);
	memcpy(&r->src_addr, &id->from, sizeof r->src_addr);
	memcpy(&r->dst_addr, &id->to, sizeof r->dst_addr);
}

static void describe_gids(const struct cm_id *id, struct rdma_ucm_query_addr_resp *r)
{
	struct sockaddr_ib from = {.sib_family = AF_IB, .sib_pkey = 0xffff}, to = from;
	if (id->gid >= 0)
		memcpy(&from.sib_addr, driver->gids[id->gid].raw, 16);
	raw_of(&id->to, (uint8_t *)&to.sib_addr);
	r->src_size = r->dst_size = sizeof from;
	memcpy(&r->src_addr, &from, sizeof from);
	memcpy(&r->dst_addr, &to, sizeof to);
}

static int describe_path(const struct cm_id *id, const struct rdma_ucm_query *q, size_t room)
{
	struct {
		struct rdma_ucm_query_path_resp head;
		struct ib_path_rec_data path;
	} r = {.head.num_paths = id->to.ss_family != 0,
		.path.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL};
	struct ibv_path_record path = {
		.flowlabel_hoplimit = htobe32(64), .tclass = id->tos, .reversible_numpath = 1 << 7 | 1, .pkey = 0xffff,
		.mtu = 2 << 6 | driver->port->active_mtu, .rate = 2 << 6 | RATE_EDR, .packetlifetime = 2 << 6 | LIFETIME,
	};
	if (id->gid >= 0)
		memcpy(&path.sgid, driver->gids[id->gid].raw, 16);
	raw_of(&id->to, path.dgid.raw);
	memcpy(r.path.path_rec, &path, sizeof path);
	return cm_answer(q->response, room, &r, sizeof r);
}

int cm_query(struct cm_call *c)
{
	struct rdma_ucm_query q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	struct rdma_ucm_query_addr_resp r = {0};
	if (id->gid >= 0)
		memcpy(&r.node_guid, node_guid, sizeof node_guid), r.port_num = 1, r.pkey = 0xffff;
	switch (q.option) {
	case RDMA_USER_CM_QUERY_PATH: return describe_path(id, &q, c->out_size);
	case RDMA_USER_CM_QUERY_ADDR: describe(id, &r); break;
	case RDMA_USER_CM_QUERY_GID: describe_gids(id, &r); break;
	default: return EINVAL;
	}
	return cm_answer(q.response, c->out_size, &r, sizeof r);
}

static int set_flag(bool *flag, bool now, bool allowed)
{
	if (allowed)
		*flag = now;
	return allowed ? 0 : EINVAL;
}

int cm_set_option(struct cm_call *c)
{
	struct rdma_ucm_set_option q;
	uint32_t value = 0;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	if (q.level != RDMA_OPTION_ID)
		return refuse("options of level", q.level);
	bool byte = q.optname == RDMA_OPTION_ID_TOS || q.optname == RDMA_OPTION_ID_ACK_TIMEOUT;
	if (q.optlen != (byte ? sizeof id->tos : sizeof value))
		return EINVAL;
	memcpy(&value, (void *)(uintptr_t)q.optval, q.optlen); // little-endian, like both architectures
	switch (q.optname) {
	case RDMA_OPTION_ID_TOS:
		id->tos = value;
		return 0;
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (value > 31)
			return EINVAL;
		id->timeout = value, id->timeout_said = true;
		return 0;
	case RDMA_OPTION_ID_REUSEADDR:
		return set_flag(&id->reuse, value, id->state == CM_IDLE || value && id->state != CM_LISTENING);
	case RDMA_OPTION_ID_AFONLY:
		id->family_said = true;
		return set_flag(&id->family_only, value, id->state == CM_IDLE || id->state == CM_BOUND);
	}
	return refuse("option of an ID", q.optname);
}
