// SPDX-License-Identifier: BSD-2-Clause

// The driver of a mana adapter: driver-specific command data. The structures are defined here, because some installed
// headers predate the driver.
#include "idle.h"

enum { DRIVER_ID = 20, ABI = 1 };
enum { SEND_REQUESTS, SEND_RESPONSES, RECEIVE_REQUESTS, RECEIVE_RESPONSES, QUEUES };

struct create_cq {
	uint64_t buffer;
	uint16_t flags, reserved[3];
};

struct create_qp {
	uint64_t buffer[QUEUES];
	uint32_t size[QUEUES];
};

static const struct ib_uverbs_query_device_resp device = {
	ROCE_DEVICE, .vendor_id = 0x1414, .vendor_part_id = 0xba, .max_sge = 16, .max_sge_rd = 16, .max_cqe = 1 << 20,
};

static int get_context(struct call *c) { return new_bells(c->file, 0) ? answer_driver(c, "", 0) : ENOMEM; }

static int create_cq(struct call *c, struct cq *cq)
{
	struct create_cq q;
	take_driver(c, &q, sizeof q);
	if (!q.buffer)
		return EINVAL;
	return answer_driver(c, (uint32_t[2]){cq->o.handle}, 8);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct create_qp q;
	uint32_t numbers[QUEUES];
	take_driver(c, &q, sizeof q);
	for (int i = 0; i < QUEUES; i++) {
		enum { TYPES = 3 }; // low bits of a queue number
		static const uint32_t types[QUEUES] = {[SEND_RESPONSES] = 1, [RECEIVE_REQUESTS] = 1};
		if (!q.buffer[i] || !q.size[i])
			return EINVAL;
		numbers[i] = (qp->number & ~TYPES) | types[i];
	}
	qp->sends = memory_of(q.buffer[SEND_REQUESTS], q.size[SEND_REQUESTS]);
	qp->receives = memory_of(q.buffer[RECEIVE_RESPONSES], q.size[RECEIVE_RESPONSES]);
	qp->bells = memory_of(q.buffer[RECEIVE_REQUESTS], q.size[RECEIVE_REQUESTS]); // announces reads
	return answer_driver(c, numbers, sizeof numbers);
}

const struct driver mana = {
	ROCE(mana), ROCE_NET, .most_numbers = 0xfffffc, .id = DRIVER_ID, .abi = ABI, .get_context = get_context,
	.alloc_pd = plain_pd,
	.create_ah = plain_ah, .create_cq = create_cq, .create_srq = no_srq, .create_qp = create_qp,
	.resize_cq = no_resize,
};
