// SPDX-License-Identifier: BSD-2-Clause

// Tag matching as libmlx5 uses it. The numbers are internal to libmlx5 and not in its headers:
// conformance/provider/tags_linux_test.go verifies them.
#include <endian.h>
#include <string.h>

#include <infiniband/mlx5dv.h>

#include "mlx5.h"

enum { KIND_AT = 4, ADD = 1, REMOVE = 2, COUNTED = 1 << 6, SIGNALED = 1 << 7 };

// mlx5_read_tags reads an operation on the tag list. An addition carries the index of the next addition.
bool mlx5_read_tags(struct request *r, const uint8_t *at, const uint8_t *end)
{
	static const uint8_t kinds[] = {TAG_SEEN, [ADD] = TAG_ADDED, [REMOVE] = TAG_REMOVED};
	struct mlx5_wqe_tm_seg s;
	if (end - at < (ptrdiff_t)sizeof s)
		return false;
	memcpy(&s, at, sizeof s);
	uint8_t kind = s.opcode >> KIND_AT;
	if (kind > REMOVE)
		return false;
	r->tags = (struct tag_operation){
		.kind = kinds[kind], .signaled = s.flags & SIGNALED, .counted = s.flags & COUNTED, .seen = be16toh(s.sw_cnt),
		.place = be16toh(s.index), .tag = be64toh(s.append_tag), .mask = be64toh(s.append_mask),
	};
	return true;
}

static const uint8_t kinds[] = {
	[TAG_MATCHED] = 1, [TAG_DATA] = 2, [TAG_UNEXPECTED] = 3, [TAG_NONE] = 4, [TAG_ADDED] = 5, [TAG_REMOVED] = 6,
	[TAG_SEEN] = 7, [TAG_MESSAGE] = 10, [TAG_LONGER] = 11, [TAG_CANCELED] = 12,
};

// mlx5_put_tagged fills in the tag fields of a completion and returns its opcode. A completion without a packet has no
// message.
uint8_t mlx5_put_tagged(struct mlx5_cqe64 *e, const struct completion *c, uint8_t opcode)
{
	const struct tagged *t = c->tagged;
	e->app = 1, e->app_op = kinds[t->kind];
	e->srqn_uidx = htobe32(c->qp->srq->user_index);
	if (t->kind == TAG_UNEXPECTED || t->kind == TAG_NONE)
		return opcode;
	e->app_info = htobe16(t->place);
	if (t->header)
		memcpy(&e->tmh, t->header, sizeof e->tmh);
	if (t->kind != TAG_ADDED && t->kind != TAG_REMOVED && t->kind != TAG_SEEN)
		return t->kind == TAG_MATCHED ? MLX5_CQE_NO_PACKET : opcode;
	e->tm_cqe.success = htobe32(t->done ? MLX5_TMC_SUCCESS : 0);
	e->tm_cqe.hw_phase_cnt = htobe16(t->unexpected);
	return MLX5_CQE_NO_PACKET;
}
