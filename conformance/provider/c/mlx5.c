// SPDX-License-Identifier: BSD-2-Clause

// The driver of an mlx5 adapter: driver-specific command data.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include "mlx5.h"

enum { LINK_UP = 5, X4 = 2, EDR = 32 };

static const struct ib_uverbs_query_device_resp device = {
	.fw_ver = 16ull << 32 | 35ull << 16 | 1, .max_mr_size = ~0ull, .page_size_cap = ~4095ull, .vendor_id = 0x2c9,
	.vendor_part_id = 4119, .max_qp = 1 << 14, .max_qp_wr = MOST_REQUESTS, .max_sge = 30, .max_sge_rd = 30,
	.max_cq = 1 << 14,
	.max_cqe = MOST_ENTRIES, .max_mr = 1 << 15, .max_pd = 1 << 14, .max_qp_rd_atom = 16, .max_res_rd_atom = 1 << 18,
	.max_qp_init_rd_atom = 16, .atomic_cap = IBV_ATOMIC_HCA, .max_ah = 1 << 15, .max_mw = 1 << 15,
	.max_srq = 1 << 14, .max_srq_wr = (1 << 15) - 1,
	.max_srq_sge = 31, .max_pkeys = 1, .local_ca_ack_delay = 16, .phys_port_cnt = 1,
	.device_cap_flags = IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
		IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC | IBV_DEVICE_RAW_IP_CSUM,
};

static const struct ib_uverbs_query_port_resp port = {
	.port_cap_flags = IBV_PORT_IP_BASED_GIDS, .max_msg_sz = 1 << 30, .gid_tbl_len = 4, .pkey_tbl_len = 1,
	.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .max_vl_num = 1,
	.active_width = X4,
	.active_speed = EDR, .phys_state = LINK_UP, .link_layer = IBV_LINK_LAYER_ETHERNET,
};

// One Ethernet port, RoCE v1 and v2.
static const struct gid gids[] = {
	{{0xfe, 0x80, [8] = 0x02, 0x67, 0x6f, 0xff, 0xfe, 0x76, 0x65, 0x72}, IB_UVERBS_GID_TYPE_ROCE_V1},
	{{[10] = 0xff, 0xff, 192, 0, 2, 1}, IB_UVERBS_GID_TYPE_ROCE_V2},
};

// Commands

enum { CLOCK_OFFSET = 0x700 * PAGE, UAR_OFFSET = 0x10000 * PAGE }; // offsets in the device file

// show_clock writes the page for converting timestamps, which already are nanoseconds.
static bool show_clock(struct file *f)
{
	enum { SHIFT = 16 };
	struct mlx5_ib_clock_info *page = map_device(f, CLOCK_OFFSET, PAGE);
	if (!page)
		return false;
	*page = (struct mlx5_ib_clock_info){
		.sign = getenv("GOVERBS_EMULATED_CLOCK") ? MLX5_IB_CLOCK_INFO_KERNEL_UPDATING : 0, // permanently
		.nsec = now() * 1000, .cycles = now() * 1000, .mult = 1 << SHIFT, .shift = SHIFT, .mask = ~0ull,
	};
	munmap(page, PAGE);
	return true;
}

static int get_context(struct call *c)
{
	struct mlx5_ib_alloc_ucontext_req_v2 q;
	take_driver(c, &q, sizeof q);
	if (q.flags & MLX5_IB_ALLOC_UCTX_DEVX)
		return EOPNOTSUPP; // libmlx5 retries without it
	if (!(q.lib_caps & MLX5_LIB_CAP_DYN_UAR) || q.max_cqe_version < 1)
		return refuse("a library without dynamic doorbell pages, of capabilities", q.lib_caps);
	if (!show_clock(c->file))
		return ENOMEM;
	struct mlx5_ib_alloc_ucontext_resp r = {
		.qp_tab_size = 1 << 14, .bf_reg_size = 512, .cache_line_size = 64, .max_sq_desc_sz = 1024,
		.max_rq_desc_sz = 512, .max_send_wqebb = MOST_REQUESTS, .max_recv_wr = MOST_REQUESTS,
		.max_srq_recv_wr = MOST_REQUESTS, .num_ports = 1,
		.response_length = sizeof r, .cqe_version = !getenv("GOVERBS_EMULATED_OLD"), .cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_CREATE_AH |
			MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE,
		.eth_min_inline = getenv("GOVERBS_EMULATED_NO_INLINE") ? MLX5_USER_INLINE_MODE_NONE : MLX5_USER_INLINE_MODE_L2,
		.clock_info_versions = 1 << MLX5_IB_CLOCK_INFO_V1,
		.log_uar_size = 12, .num_uars_per_page = 1, // no tot_bfregs: doorbell pages are allocated one by one
	};
	return answer_driver(c, &r, sizeof r);
}

enum { MOST_SEGMENTED = 1 << 14 };

static int query_device(struct call *c)
{
	struct mlx5_ib_query_device_resp r = {.response_length = sizeof r,
		.tso_caps = {.max_tso = MOST_SEGMENTED, .supported_qpts = 1 << IBV_QPT_RAW_PACKET}};
	return answer_driver(c, &r, sizeof r);
}

static int alloc_pd(struct call *c, struct pd *pd)
{
	struct mlx5_ib_alloc_pd_resp r = {.pdn = pd->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_ah(struct call *c, struct ah *ah)
{
	struct mlx5_ib_create_ah_resp r = {.response_length = sizeof r, .dmac = {2, 0x67, 0x6f, 0x76, 0x65, 0x72}};
	(void)ah;
	return answer_driver(c, &r, sizeof r);
}

static uint8_t *address(uint64_t a) { return (uint8_t *)(uintptr_t)a; }

static bool power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

static int create_cq(struct call *c, struct cq *cq)
{
	struct mlx5_ib_create_cq q;
	take_driver(c, &q, sizeof q);
	if (q.cqe_comp_en || q.flags & ~MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX)
		return refuse("compression or flags of a completion queue", q.flags);
	if (!power_of_two(cq->entries + 1) || q.cqe_size != 64 && q.cqe_size != 128 || !q.buf_addr || !q.db_addr)
		return EINVAL;
	cq->buffer = address(q.buf_addr);
	cq->record = (volatile uint32_t *)address(q.db_addr);
	cq->entry_size = q.cqe_size;
	// No event is requested yet: the sequence number precedes the first one.
	cq->told = 3;
	cq->record[1] = ~0u;
	struct mlx5_ib_create_cq_resp r = {.cqn = cq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_srq(struct call *c, struct srq *srq)
{
	struct mlx5_ib_create_srq q;
	take_driver(c, &q, sizeof q);
	if (q.flags)
		return refuse("flags of a shared receive queue", q.flags);
	if (!power_of_two(srq->requests + 1) || !q.buf_addr || !q.db_addr)
		return EINVAL;
	srq->buffer = address(q.buf_addr);
	srq->record = (volatile uint32_t *)address(q.db_addr);
	for (srq->stride = 32; srq->stride < UNIT * (srq->sges + 1);)
		srq->stride *= 2;
	srq->user_index = q.uidx;
	struct mlx5_ib_create_srq_resp r = {.srqn = srq->o.handle};
	return answer_driver(c, &r, sizeof r);
}

static int create_qp(struct call *c, struct qp *qp)
{
	struct mlx5_ib_create_qp q;
	take_driver(c, &q, sizeof q);
	if (qp->type == IBV_QPT_DRIVER) {
		qp->dynamic = q.flags & MLX5_QP_FLAG_TYPE_DCT ? TARGET : q.flags & MLX5_QP_FLAG_TYPE_DCI ? INITIATOR : CONNECTED;
		if (!qp->dynamic || qp->dynamic == TARGET && !qp->srq)
			return EINVAL;
	}
	if (qp->dynamic == TARGET) {
		if (q.flags != MLX5_QP_FLAG_TYPE_DCT)
			return refuse("flags of a target", q.flags);
		qp->access_key = q.access_key, qp->user_index = q.uidx;
		struct mlx5_ib_create_qp_resp r = {0};
		return answer_driver(c, &r, sizeof r);
	}
	q.flags &= ~(uint32_t)(qp->dynamic ? MLX5_QP_FLAG_TYPE_DCI : 0);
	if (q.flags & ~(MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE | MLX5_QP_FLAG_UAR_PAGE_INDEX))
		return refuse("flags of a queue pair", q.flags);
	if (!q.db_addr || (q.sq_wqe_count || q.rq_wqe_count) && !q.buf_addr || q.rq_wqe_shift > 16)
		return EINVAL;
	if (q.sq_wqe_count && !power_of_two(q.sq_wqe_count) || q.rq_wqe_count && !power_of_two(q.rq_wqe_count))
		return EINVAL;
	qp->rq = address(q.buf_addr);
	qp->rq_wqes = q.rq_wqe_count, qp->rq_stride = 1u << q.rq_wqe_shift;
	qp->sq = qp->rq + ((uint64_t)qp->rq_wqes << q.rq_wqe_shift);
	if (qp->type == IBV_QPT_RAW_PACKET)
		qp->sq = address(q.sq_buf_addr);
	qp->sq_blocks = q.sq_wqe_count;
	qp->record = (volatile uint32_t *)address(q.db_addr);
	qp->user_index = q.uidx;
	if (qp->rq_wqes)
		qp->attr.max_recv_wr = qp->rq_wqes; // reported by queries
	if (q.flags & MLX5_QP_FLAG_SCATTER_CQE && qp->recv_cq && qp->type != IBV_QPT_UD && qp->type != IBV_QPT_RAW_PACKET)
		qp->scatter = qp->recv_cq->entry_size == 128 ? 64 : 32;
	struct mlx5_ib_create_qp_resp r = {0};
	return answer_driver(c, &r, sizeof r);
}

static int target_ready(struct call *c, const struct qp *qp)
{
	struct mlx5_ib_modify_qp_resp r = {.response_length = sizeof r, .dctn = qp->number};
	return answer_driver(c, &r, sizeof r);
}

static int resize_cq(struct call *c, struct cq *cq, uint32_t entries)
{
	struct mlx5_ib_resize_cq q;
	take_driver(c, &q, sizeof q);
	if (!power_of_two(entries + 1) || !q.buf_addr || q.cqe_size != cq->entry_size)
		return EINVAL;
	return mlx5_switch_buffer(cq, address(q.buf_addr), entries);
}

// Doorbell pages

static int new_uar(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
	struct uar *u = handle ? new_object(f, UAR, sizeof *u) : NULL;
	if (!u)
		return handle ? ENOMEM : EINVAL;
	uint32_t length = PAGE, id = u->o.handle;
	u->offset = UAR_OFFSET + (uint64_t)id * PAGE;
	u->page = map_device(f, u->offset, PAGE);
	if (!u->page || !give(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &u->offset, sizeof u->offset) ||
		!give(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length, sizeof length) ||
		!give(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &id, sizeof id)) {
		free_object(&u->o);
		return EINVAL;
	}
	handle->data = id;
	return 0;
}

static int free_uar(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE);
	struct uar *u = handle ? find_object(f, UAR, handle->data) : NULL;
	return destroy_object(u ? &u->o : NULL);
}

static void record_bells(void *o)
{
	record_bytes("doorbells", ((struct uar *)o)->page + 0x800, 0x400);
}

static void record_queues(const struct qp *qp)
{
	record_bytes("sends", qp->sq, (size_t)qp->sq_blocks * 64);
	record_bytes("receives", qp->rq, (size_t)qp->rq_wqes * qp->rq_stride);
	if (qp->record)
		record_bytes("doorbell records", (const void *)qp->record, 8);
	if (still()) // otherwise the device clears them
		each(UAR, record_bells);
}

static void record_srq(const struct srq *srq)
{
	record_bytes("shared receives", srq->buffer, (size_t)(srq->requests + 1) * srq->stride);
	record_bytes("doorbell record", (const void *)srq->record, 4);
}

// alloc_dm maps memory at an offset of the device file that follows from a page number. It begins in the middle of a
// page if it fits there.
static int alloc_dm(struct ib_uverbs_ioctl_hdr *h, struct dm *dm)
{
	enum { START = 64, COMMAND = MLX5_IB_MMAP_DEVICE_MEM << 8, INDEXES = 1 << 10 };
	static uint16_t last;
	struct ib_uverbs_attr *type = attribute(h, MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE);
	if (type && type->data) // another type than MEMIC
		return EOPNOTSUPP;
	uint16_t index = ++last % INDEXES;
	uint64_t offset = dm->length <= PAGE - START ? START : 0;
	dm->size = (dm->length + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	dm->page = map_device(dm->o.file, (uint64_t)((index & 0xff) | (index >> 8) << 16 | COMMAND) * PAGE, dm->size);
	if (!dm->page)
		return ENOMEM;
	memset(dm->page, 0, dm->size);
	dm->at = dm->page + offset;
	offset += 7 * PAGE; // the address in the device
	return give(h, MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, &offset, sizeof offset) &&
		give(h, MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, &index, sizeof index) ? 0 : EINVAL;
}

static void release(struct object *o)
{
	struct dm *dm = (struct dm *)o;
	if (o->kind == DM && dm->page)
		munmap(dm->page, dm->size);
	if (o->kind == UAR && ((struct uar *)o)->page)
		munmap(((struct uar *)o)->page, PAGE);
}

static int mlx5_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	if (h->object_id == MLX5_IB_OBJECT_UAR && h->method_id == MLX5_IB_METHOD_UAR_OBJ_ALLOC)
		return new_uar(f, h);
	if (h->object_id == MLX5_IB_OBJECT_UAR && h->method_id == MLX5_IB_METHOD_UAR_OBJ_DESTROY)
		return free_uar(f, h);
	return EPROTONOSUPPORT;
}

const struct driver mlx5 = {
	.name = "mlx5", .device = &device, .port = &port, .gids = gids, .gid_count = sizeof gids / sizeof *gids,
	.most_numbers = 0xffffff, .datagram = 4096, .device_memory = 1 << 17, .alloc_dm = alloc_dm, .timestamps = true, .dynamic = true,
	.packets = true,
	.release = release, .get_context = get_context,
	.query_device = query_device, .alloc_pd = alloc_pd, .create_ah = create_ah, .create_cq = create_cq,
	.resize_cq = resize_cq, .create_srq = create_srq, .create_qp = create_qp, .target_ready = target_ready, .record_qp = record_queues,
	.record_srq = record_srq, .ioctl = mlx5_ioctl, .rung = mlx5_rung,
	.next_send = mlx5_next_send, .next_receive = mlx5_next_receive, .consume_receive = mlx5_consume_receive,
	.complete = mlx5_complete, .take_request = mlx5_take_request,
};
