// SPDX-License-Identifier: BSD-2-Clause

/* Polls an extended completion queue like a C program. */
#include "stub.h"

struct polled { /* the Go side has the same structure */
	uint64_t wr_id;
	uint32_t status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, slid, flow_tag;
	uint64_t timestamp;
	uint8_t sl, dlid_path_bits;
	uint16_t cvlan;
};

struct poll { /* the Go side has the same structure */
	uint64_t cq, attr;
	uint64_t max;
	struct polled *to;
	int64_t started, polled, next;	/* what ibv_start_poll and the last ibv_next_poll returned */
};

void stub_poll_region(struct poll *p);
void stub_poll_region(struct poll *p)
{
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)(uintptr_t)p->cq;

	p->polled = p->next = 0;
	p->started = ibv_start_poll(cq, (struct ibv_poll_cq_attr *)(uintptr_t)p->attr);
	if (p->started)
		return;
	for (;;) {
		struct polled *to = &p->to[p->polled++];

		to->wr_id = cq->wr_id;
		to->status = cq->status;
		to->opcode = ibv_wc_read_opcode(cq);
		to->vendor_err = ibv_wc_read_vendor_err(cq);
		to->byte_len = ibv_wc_read_byte_len(cq);
		to->imm_data = ibv_wc_read_imm_data(cq);
		to->qp_num = ibv_wc_read_qp_num(cq);
		to->src_qp = ibv_wc_read_src_qp(cq);
		to->wc_flags = ibv_wc_read_wc_flags(cq);
		to->slid = ibv_wc_read_slid(cq);
		to->flow_tag = ibv_wc_read_flow_tag(cq);
		to->timestamp = ibv_wc_read_completion_ts(cq);
		to->sl = ibv_wc_read_sl(cq);
		to->dlid_path_bits = ibv_wc_read_dlid_path_bits(cq);
		to->cvlan = ibv_wc_read_cvlan(cq);
		if (p->polled == (int64_t)p->max)
			break;
		p->next = ibv_next_poll(cq);
		if (p->next)
			break;
	}
	ibv_end_poll(cq);
}
