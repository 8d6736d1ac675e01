// SPDX-License-Identifier: BSD-2-Clause

// Packets of raw packet queue pairs. Those of the process that have a rule of flow steering receive each packet, because
// rules match every packet.
#include <stdlib.h>

#include "transport.h"

static struct qp *from;
static const struct request *of;
static const struct memory *packet;

static void deliver(void *o)
{
	struct qp *qp = o;
	bool receives = qp->attr.qp_state == IBV_QPS_RTR || qp->attr.qp_state == IBV_QPS_RTS;
	if (qp->type == IBV_QPT_RAW_PACKET && receives && steered(qp))
		land(qp, from, of, packet, NULL);
}

static void send_packet(struct qp *qp, const struct request *r, const struct memory *m)
{
	from = qp, of = r, packet = m;
	each(QP, deliver);
}

// send_packets sends a packet, or one for each segment of a request with a header.
enum status send_packets(struct qp *qp, const struct request *r, struct memory *data)
{
	if (!r->segment) {
		send_packet(qp, r, data);
		return OK;
	}
	uint8_t *all = malloc(data->total);
	struct memory copy = {0};
	if (!all || !add(&copy, all, data->total))
		abort();
	move(&copy, 0, data, data->total);
	for (uint64_t at = r->header; at < data->total; at += r->segment) {
		struct memory one = {0};
		uint64_t n = data->total - at;
		add(&one, all, r->header);
		add(&one, all + at, n < r->segment ? n : r->segment);
		send_packet(qp, r, &one);
	}
	free(all);
	return OK;
}
