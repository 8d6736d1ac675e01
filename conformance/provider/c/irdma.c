// SPDX-License-Identifier: BSD-2-Clause

// The driver of an irdma adapter: driver-specific command data.
#include <rdma/irdma-abi.h>

#include "idle.h"

enum { QUANTUM = 32, HAS_SRQ = 1 << 7, MIN_QUEUE_KNOWN = 1 << 1, SECOND = 2 }; // SECOND is the second generation
enum { MOST_QUANTA = 1 << 15 };

// Definitions that some installed headers lack.
union context {
	struct irdma_alloc_ucontext_resp known;
	struct {
		uint8_t before[64];
		uint64_t mask;
		uint16_t min_queue, unused;
		uint32_t most_srq;
	};
};
struct create_srq {
	uint64_t buffer, shadow;
};

static const struct ib_uverbs_query_device_resp device = {
	ROCE_DEVICE, .vendor_id = 0x8086, .vendor_part_id = 0x1592, .max_sge = 13, .max_sge_rd = 13, .max_cqe = 1 << 19,
	ROCE_SRQ(13),
};

static int get_context(struct call *c)
{
	enum { BELLS = PAGE };
	if (!new_bells(c->file, BELLS))
		return ENOMEM;
	union context r = {
		.known = {
			.max_pds = 1 << 14, .max_qps = 1 << 14, .kernel_ver = IRDMA_ABI_VER, .feature_flags = HAS_SRQ,
			.db_mmap_key = BELLS, .max_hw_wq_frags = 13, .max_hw_read_sges = 13, .max_hw_inline = 96,
			.max_hw_rq_quanta = MOST_QUANTA, .max_hw_wq_quanta = MOST_QUANTA, .min_hw_cq_size = 4,
			.max_hw_cq_size = 1 << 20, .max_hw_sq_chunk = 8, .hw_rev = SECOND,
		},
	};
	r.mask = MIN_QUEUE_KNOWN, r.min_queue = 8, r.most_srq = MOST_QUANTA;
	return answer_driver(c, &r, sizeof r);
}

static int create_cq(struct call *c, struct cq *cq)
{
	struct irdma_create_cq_req q;
	take_driver(c, &q, sizeof q);
	if (!q.user_cq_buf || !q.user_shadow_area)
		return EINVAL;
	struct irdma_create_cq_resp r = {.cq_id = cq->o.handle, .cq_size = cq->entries};
	return answer_driver(c, &r, sizeof r);
}

static int create_srq(struct call *c, struct srq *srq)
{
	struct create_srq q;
	take_driver(c, &q, sizeof q);
	if (!q.buffer || !q.shadow)
		return EINVAL;
	return answer_driver(c, (uint32_t[2]){srq->o.handle, srq->requests}, 8);
}

static uint64_t wanted;
static size_t found;

static void look_at(void *o)
{
	struct mr *mr = o;
	if (mr->start == wanted)
		found = mr->length;
}

// A queue pair's queues were registered as memory earlier; the length is that of the region.
static int create_qp(struct call *c, struct qp *qp)
{
	struct irdma_create_qp_req q;
	take_driver(c, &q, sizeof q);
	wanted = q.user_wqe_bufs, found = 0;
	each(MR, look_at);
	if (!found)
		return EINVAL;
	qp->sends = memory_of(q.user_wqe_bufs, found); // both queues, and the shadow area
	struct irdma_create_qp_resp r = {
		.qp_id = qp->number, .actual_sq_size = qp->attr.max_send_wr, .actual_rq_size = qp->attr.max_recv_wr,
	};
	return answer_driver(c, &r, sizeof r);
}

const struct driver irdma = {
	ROCE(irdma), ROCE_NET, .id = RDMA_DRIVER_IRDMA, .abi = IRDMA_ABI_VER, .most_numbers = 0x3ffff, .get_context = get_context,
	.alloc_pd = plain_pd, .create_ah = plain_ah, .create_cq = create_cq, .create_srq = create_srq,
	.create_qp = create_qp,
	.resize_cq = no_resize,
};
