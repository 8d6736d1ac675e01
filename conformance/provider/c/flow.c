// SPDX-License-Identifier: BSD-2-Clause

// Rules of flow steering, which match no packets, and their counters: each rule counts a constant.
#include <string.h>

#include <rdma/mlx5-abi.h>

#include "emulated.h"

enum { MOST_SPECS = 10, MOST_POINTS = 16, PACKETS = 11, BYTES = 704 };

struct counters {
	struct object o;
	unsigned points, greatest; // greatest index
	struct mlx5_ib_flow_counters_desc point[MOST_POINTS];
};

struct flow {
	struct object o;
	struct qp *qp;
	struct counters *counters;
};

// size_of returns the size of a spec, or 0 for an unknown one.
static size_t size_of(uint32_t type)
{
	switch (type & ~IBV_FLOW_SPEC_INNER) {
	case IBV_FLOW_SPEC_ETH: return sizeof(struct ib_uverbs_flow_spec_eth);
	case IBV_FLOW_SPEC_IPV4: return sizeof(struct ib_uverbs_flow_spec_ipv4);
	case IBV_FLOW_SPEC_IPV6: return sizeof(struct ib_uverbs_flow_spec_ipv6);
	case IBV_FLOW_SPEC_TCP: case IBV_FLOW_SPEC_UDP: return sizeof(struct ib_uverbs_flow_spec_tcp_udp);
	case IBV_FLOW_SPEC_ESP: return sizeof(struct ib_uverbs_flow_spec_esp);
	case IBV_FLOW_SPEC_VXLAN_TUNNEL: return sizeof(struct ib_uverbs_flow_spec_tunnel);
	case IBV_FLOW_SPEC_GRE: return sizeof(struct ib_uverbs_flow_spec_gre);
	case IBV_FLOW_SPEC_MPLS: return sizeof(struct ib_uverbs_flow_spec_mpls);
	case IBV_FLOW_SPEC_ACTION_TAG: return sizeof(struct ib_uverbs_flow_spec_action_tag);
	case IBV_FLOW_SPEC_ACTION_DROP: return sizeof(struct ib_uverbs_flow_spec_action_drop);
	case IBV_FLOW_SPEC_ACTION_COUNT: return sizeof(struct ib_uverbs_flow_spec_action_count);
	}
	return 0;
}

// check_specs checks the specs of a rule and finds its counters.
static int check_specs(struct call *c, const struct ib_uverbs_flow_attr *a, struct counters **counters)
{
	size_t at = sizeof(struct ib_uverbs_create_flow), end = at + a->size;
	if (a->num_of_specs > MOST_SPECS || end != c->in_size)
		return EINVAL;
	for (int i = 0; i < a->num_of_specs; i++) {
		struct ib_uverbs_flow_spec_hdr h;
		if (at + sizeof h > end)
			return EINVAL;
		memcpy(&h, c->in + at, sizeof h);
		size_t size = size_of(h.type);
		// the filter of IPv4 was shorter once
		if (!size || h.size != size && !(h.type == IBV_FLOW_SPEC_IPV4 && h.size == size - 8) || h.reserved ||
			at + h.size > end)
			return EINVAL;
		if (h.type == IBV_FLOW_SPEC_ACTION_COUNT) {
			struct ib_uverbs_flow_spec_action_count q;
			memcpy(&q, c->in + at, sizeof q);
			if (*counters || !(*counters = find_object(c->file, COUNTERS, q.handle)))
				return EINVAL;
		}
		at += h.size;
	}
	return at == end ? 0 : EINVAL;
}

// take_points takes the points of counters from the first rule that has them.
static int take_points(struct call *c, struct counters *n)
{
	struct mlx5_ib_create_flow q;
	take_driver(c, &q, sizeof q);
	if (n->points)
		return q.ncounters_data ? EINVAL : 0;
	struct mlx5_ib_flow_counters_data data;
	if (q.ncounters_data != 1 || c->driver_in_size < sizeof q + sizeof data)
		return EINVAL;
	memcpy(&data, c->driver_in + sizeof q, sizeof data);
	if (!data.ncounters || data.ncounters > MOST_POINTS)
		return EINVAL;
	const void *points = (const void *)(uintptr_t)data.counters_data;
	if (recording())
		record_words("points", points, data.ncounters * sizeof *n->point);
	memcpy(n->point, points, data.ncounters * sizeof *n->point);
	n->points = data.ncounters;
	for (unsigned i = 0; i < n->points; i++)
		if (n->point[i].index > n->greatest)
			n->greatest = n->point[i].index;
	return 0;
}

static const struct qp *wanted;
static bool found;

static void look_at(void *o) { found |= ((struct flow *)o)->qp == wanted; }

bool steered(const struct qp *qp)
{
	wanted = qp, found = false;
	each(FLOW, look_at);
	return found;
}

static int create_flow(struct call *c)
{
	struct ib_uverbs_create_flow q;
	TAKE(c, q);
	struct qp *qp = find_object(c->file, QP, q.qp_handle);
	struct counters *counters = NULL;
	if (!driver->device_memory) // only mlx5 has rules here
		return EOPNOTSUPP;
	if (q.comp_mask || !qp || qp->type != IBV_QPT_UD && qp->type != IBV_QPT_RAW_PACKET || q.flow_attr.port != 1 ||
		c->driver_in_size < sizeof(struct mlx5_ib_create_flow))
		return EINVAL;
	int err = check_specs(c, &q.flow_attr, &counters);
	if (!err && counters)
		err = take_points(c, counters);
	struct flow *flow = err ? NULL : new_object(c->file, FLOW, sizeof *flow);
	if (!flow)
		return err ? err : ENOMEM;
	flow->qp = qp, flow->counters = counters;
	qp->o.users++;
	if (counters)
		counters->o.users++;
	struct ib_uverbs_create_flow_resp r = {.flow_handle = flow->o.handle};
	return answer(c, &r, sizeof r);
}

static int destroy_flow(struct call *c)
{
	struct ib_uverbs_destroy_flow q;
	TAKE(c, q);
	struct flow *flow = find_object(c->file, FLOW, q.flow_handle);
	if (!flow)
		return ENOENT;
	flow->qp->o.users--;
	if (flow->counters && !--flow->counters->o.users)
		flow->counters->points = flow->counters->greatest = 0;
	return destroy_object(&flow->o);
}

static struct counters *named(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, UVERBS_ATTR_READ_COUNTERS_HANDLE); // as of every method
	return handle ? find_object(f, COUNTERS, handle->data) : NULL;
}

static int read_counters(struct counters *n, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *to = attribute(h, UVERBS_ATTR_READ_COUNTERS_BUFF);
	if (!n || !to || !n->points || to->len / sizeof(uint64_t) <= n->greatest)
		return EINVAL;
	uint64_t *values = (uint64_t *)(uintptr_t)to->data;
	memset(values, 0, to->len);
	for (unsigned i = 0; i < n->points; i++)
		values[n->point[i].index] += n->o.users * (n->point[i].description ? BYTES : PACKETS);
	return 0;
}

int counters_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct counters *n = NULL;
	switch (h->method_id) {
	case UVERBS_METHOD_COUNTERS_CREATE:
		n = new_object(f, COUNTERS, sizeof *n);
		if (!n)
			return ENOMEM;
		attribute(h, UVERBS_ATTR_CREATE_COUNTERS_HANDLE)->data = n->o.handle;
		return 0;
	case UVERBS_METHOD_COUNTERS_DESTROY:
		n = named(f, h);
		return destroy_object(n ? &n->o : NULL);
	case UVERBS_METHOD_COUNTERS_READ:
		return read_counters(named(f, h), h);
	}
	return EPROTONOSUPPORT;
}

const struct command flow_commands[] = {
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_FLOW, create_flow},
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_FLOW, destroy_flow},
	{0, NULL},
};
