// SPDX-License-Identifier: BSD-2-Clause

// The table of GIDs, by methods of their own: two for one Ethernet port, of both versions of RoCE. The files of
// sysfs that the tests write (sysfs.go) say the same.
#include <string.h>

#include "emulated.h"

static const struct ib_uverbs_gid_entry gids[] = {
	{.gid_index = 0, .port_num = 1, .gid_type = IB_UVERBS_GID_TYPE_ROCE_V1, .netdev_ifindex = 1},
	{.gid_index = 1, .port_num = 1, .gid_type = IB_UVERBS_GID_TYPE_ROCE_V2, .netdev_ifindex = 1},
};
static const uint8_t raw[][16] = {
	{0xfe, 0x80, [8] = 0x02, 0x67, 0x6f, 0xff, 0xfe, 0x76, 0x65, 0x72},
	{[10] = 0xff, 0xff, 192, 0, 2, 1},
};
enum { GIDS = sizeof gids / sizeof *gids };

static struct ib_uverbs_gid_entry entry(int i)
{
	struct ib_uverbs_gid_entry e = gids[i];
	memcpy(&e.gid, raw[i], sizeof raw[i]);
	return e;
}

static int query_table(struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *size = attribute(h, UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE);
	struct ib_uverbs_attr *to = attribute(h, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
	if (!size || !to || size->data < sizeof *gids || to->len / size->data < GIDS)
		return EINVAL;
	uint8_t *at = (uint8_t *)(uintptr_t)to->data;
	memset(at, 0, to->len);
	for (int i = 0; i < GIDS; i++, at += size->data) {
		struct ib_uverbs_gid_entry e = entry(i);
		memcpy(at, &e, sizeof e);
	}
	to->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
	uint64_t n = GIDS;
	return give(h, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &n, sizeof n) ? 0 : EINVAL;
}

static int query_entry(struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *port = attribute(h, UVERBS_ATTR_QUERY_GID_ENTRY_PORT);
	struct ib_uverbs_attr *index = attribute(h, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
	if (!port || !index || port->data != 1)
		return EINVAL;
	if (index->data >= GIDS)
		return ENODATA;
	struct ib_uverbs_gid_entry e = entry(index->data);
	return give(h, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &e, sizeof e) ? 0 : EINVAL;
}

int query_gids(struct ib_uverbs_ioctl_hdr *h)
{
	return h->method_id == UVERBS_METHOD_QUERY_GID_TABLE ? query_table(h) : query_entry(h);
}
