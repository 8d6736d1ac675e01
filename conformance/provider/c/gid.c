// SPDX-License-Identifier: BSD-2-Clause

// Methods for the GID table of the driver's single port. The sysfs files written by the tests (sysfs.go) agree with it.
#include <string.h>

#include "emulated.h"

static struct ib_uverbs_gid_entry entry(unsigned i)
{
	struct ib_uverbs_gid_entry e = {.gid_index = i, .port_num = 1, .gid_type = driver->gids[i].type};
	if (infiniband())
		e.gid_type = IB_UVERBS_GID_TYPE_IB;
	e.netdev_ifindex = e.gid_type != IB_UVERBS_GID_TYPE_IB; // 0 without a network device
	memcpy(&e.gid, driver->gids[i].raw, sizeof driver->gids[i].raw);
	return e;
}

static int query_table(struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *size = attribute(h, UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE);
	struct ib_uverbs_attr *to = attribute(h, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
	if (!size || !to || size->data < sizeof(struct ib_uverbs_gid_entry) ||
		to->len / size->data < driver->gid_count)
		return EINVAL;
	uint8_t *at = (uint8_t *)(uintptr_t)to->data;
	memset(at, 0, to->len);
	for (unsigned i = 0; i < driver->gid_count; i++, at += size->data) {
		struct ib_uverbs_gid_entry e = entry(i);
		memcpy(at, &e, sizeof e);
	}
	to->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
	uint64_t n = driver->gid_count;
	return give(h, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &n, sizeof n) ? 0 : EINVAL;
}

static int query_entry(struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *port = attribute(h, UVERBS_ATTR_QUERY_GID_ENTRY_PORT);
	struct ib_uverbs_attr *index = attribute(h, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
	if (!port || !index || port->data != 1)
		return EINVAL;
	if (index->data >= driver->gid_count)
		return ENODATA;
	struct ib_uverbs_gid_entry e = entry(index->data);
	return give(h, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &e, sizeof e) ? 0 : EINVAL;
}

int query_gids(struct ib_uverbs_ioctl_hdr *h)
{
	return h->method_id == UVERBS_METHOD_QUERY_GID_TABLE ? query_table(h) : query_entry(h);
}
