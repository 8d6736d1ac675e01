// SPDX-License-Identifier: BSD-2-Clause

/*
 * rc-latency is the C counterpart of examples/rc-pingpong and makes the same calls as ibv_rc_pingpong. Each side prints
 * its latencies as mean,p50,p99 in nanoseconds, like rc-pingpong -csv; ibv_rc_pingpong prints only the mean.
 *
 *	rc-latency DEVICE GID-INDEX SIZE ITERS EVENTS PORT [HOST]
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { depth = 500, wire_bytes = 52 };

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

/* meet connects to the host, or accepts a connection. */
static int meet(const char *host, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1, c;
	if (host) {
		must(inet_pton(AF_INET, host, &at.sin_addr) == 1, host);
		must(!connect(s, (struct sockaddr *)&at, sizeof(at)), "connect");
		return s;
	}
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	must(!bind(s, (struct sockaddr *)&at, sizeof(at)) && !listen(s, 1), "listen");
	c = accept(s, NULL, NULL);
	must(c >= 0, "accept");
	close(s);
	return c;
}

struct end {
	uint32_t qpn, psn;
	union ibv_gid gid;
};

static void send_end(int conn, const struct end *e)
{
	char text[wire_bytes], *at = text + sprintf(text, "0000:%06x:%06x:", e->qpn, e->psn);
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%02x", e->gid.raw[i]);
	must(write(conn, text, wire_bytes) == wire_bytes, "write");
}

static void recv_end(int conn, struct end *e)
{
	char text[wire_bytes];
	unsigned lid, byte;
	must(recv(conn, text, wire_bytes, MSG_WAITALL) == wire_bytes, "read");
	must(sscanf(text, "%x:%x:%x:", &lid, &e->qpn, &e->psn) == 3, "endpoint");
	for (int i = 0; i < 16; i++) {
		sscanf(text + 19 + 2 * i, "%2x", &byte);
		e->gid.raw[i] = byte;
	}
}

static void connect_to(struct ibv_qp *qp, const struct end *own, const struct end *peer, int gid_index)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = peer->psn,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 6,
				   .sq_psn = own->psn };
	must(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	must(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			    IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

int main(int argc, char **argv)
{
	must(argc == 7 || argc == 8, "usage: rc-latency DEVICE GID-INDEX SIZE ITERS EVENTS PORT [HOST]");
	int gid_index = atoi(argv[2]), size = atoi(argv[3]), iters = atoi(argv[4]), events = atoi(argv[5]);
	const char *host = argv[7];
	struct ibv_device **list = ibv_get_device_list(NULL), **d = list;
	must(list != NULL, "devices");
	while (*d && strcmp(ibv_get_device_name(*d), argv[1]))
		d++;
	must(*d != NULL, argv[1]);
	struct ibv_context *context = ibv_open_device(*d);
	must(context != NULL, "open");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = events ? ibv_create_comp_channel(context) : NULL;
	struct ibv_cq *cq = ibv_create_cq(context, depth + 1, NULL, channel, 0), *which;
	char *memory = aligned_alloc(4096, (2 * size + 4095) / 4096 * 4096);
	must(pd && cq && memory, "CQ");
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * size, IBV_ACCESS_LOCAL_WRITE);
	must(mr != NULL, "MR");
	struct ibv_qp_init_attr qi = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &qi);
	must(qp != NULL, "QP");
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	must(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");

	struct ibv_sge out = { (uintptr_t)memory, size, mr->lkey }, in = { (uintptr_t)memory + size, size, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr *bad_send;
	int posted = 0;
	for (; posted < depth; posted++)
		must(!ibv_post_recv(qp, &receive, &bad_recv), "post_recv");
	if (events)
		must(!ibv_req_notify_cq(cq, 0), "req_notify");

	struct end own = { .qpn = qp->qp_num, .psn = getpid() & 0xffffff }, peer;
	must(!ibv_query_gid(context, 1, gid_index, &own.gid), "GID");
	int conn = meet(host, atoi(argv[6]));
	char done[5] = "done";
	if (host) {
		send_end(conn, &own);
		recv_end(conn, &peer);
		must(write(conn, done, 5) == 5, "done");
		connect_to(qp, &own, &peer, gid_index);
	} else {
		recv_end(conn, &peer);
		connect_to(qp, &own, &peer, gid_index);
		send_end(conn, &own);
		must(recv(conn, done, 5, MSG_WAITALL) == 5, "done");
	}

	int64_t *took = calloc(iters, sizeof(*took)), began = now();
	int n = 0, sent = 0, received = 0, pending = 1, got_events = 0;
	void *unused;
	if (host) {
		must(!ibv_post_send(qp, &send, &bad_send), "post_send");
		pending |= 2;
	}
	while (sent < iters || received < iters) {
		struct ibv_wc wc[2];
		int got;
		if (events) {
			must(!ibv_get_cq_event(channel, &which, &unused), "get_cq_event");
			got_events++;
			must(!ibv_req_notify_cq(cq, 0), "req_notify");
			got = ibv_poll_cq(cq, 2, wc);
		} else {
			while (!(got = ibv_poll_cq(cq, 2, wc)))
				;
		}
		must(got >= 0, "poll_cq");
		for (int i = 0; i < got; i++) {
			must(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
			pending &= ~(int)wc[i].wr_id;
			if (wc[i].wr_id == 2) {
				sent++;
			} else {
				received++;
				if (--posted <= depth / 2)
					for (; posted < depth; posted++)
						must(!ibv_post_recv(qp, &receive, &bad_recv), "post_recv");
			}
			if (pending)
				continue;
			int64_t t = now();
			if (n < iters)
				took[n++] = t - began;
			began = t;
			if (sent < iters) {
				must(!ibv_post_send(qp, &send, &bad_send), "post_send");
				pending = 3;
			}
		}
	}
	int64_t sum = 0;
	for (int i = 0; i < n; i++)
		sum += took[i];
	qsort(took, n, sizeof(*took), by_value);
	printf("%lld,%lld,%lld\n", (long long)(sum / n), (long long)took[n / 2], (long long)took[n * 99 / 100]);
	ibv_ack_cq_events(cq, got_events);
	must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "destroy");
	if (channel)
		must(!ibv_destroy_comp_channel(channel), "destroy channel");
	must(!ibv_close_device(context), "close");
	ibv_free_device_list(list);
	return 0;
}
