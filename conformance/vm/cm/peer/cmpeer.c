// SPDX-License-Identifier: BSD-2-Clause

/*
 * A C peer for the tests of package cm. It calls every function of <rdma/rdma_verbs.h> except constructors, in the
 * order of a script with two roles, and prints each completion and the received data. Tests compare this with the
 * output of Go in the same role.
 *
 * cmpeer x|y ADDRESS PORT: x connects, y listens. Datagrams use the next port.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { SIZE = 256, GRH = 40 };

struct info {
	uint64_t read_addr, write_addr;
	uint32_t read_key, write_key;
};

static struct rdma_cm_id *id;
static char msgs[SIZE], readable[SIZE], writable[SIZE];
static struct ibv_mr *msgs_mr, *readable_mr, *writable_mr;

static void die(const char *what)
{
	printf("failed: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void must(int ret, const char *what)
{
	if (ret)
		die(what);
}

static void completion(const char *queue, int n, struct ibv_wc *wc)
{
	if (n != 1)
		die(queue);
	printf("%s: context %" PRIu64 " status %d opcode %d", queue, wc->wr_id, wc->status, wc->opcode);
	if (wc->opcode & IBV_WC_RECV)
		printf(" bytes %u", wc->byte_len);
	printf("\n");
}

static void sent(struct rdma_cm_id *i)
{
	struct ibv_wc wc;
	int n;

	while (!(n = rdma_get_send_comp(i, &wc)))
		;
	completion("send", n, &wc);
}

static void received(struct rdma_cm_id *i, const char *at)
{
	struct ibv_wc wc;
	int n;

	while (!(n = rdma_get_recv_comp(i, &wc)))
		;
	completion("recv", n, &wc);
	if (at)
		printf("data %.*s\n", (int)wc.byte_len, at);
}

static void attributes(struct ibv_qp_init_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->cap.max_send_wr = attr->cap.max_recv_wr = 8;
	attr->cap.max_send_sge = attr->cap.max_recv_sge = 2;
	attr->cap.max_inline_data = 64;
	attr->sq_sig_all = 1;
}

static struct rdma_cm_id *endpoint(const char *address, const char *port, int passive, enum rdma_port_space ps)
{
	struct rdma_addrinfo hints, *res;
	struct ibv_qp_init_attr attr;
	struct rdma_cm_id *made;

	memset(&hints, 0, sizeof(hints));
	hints.ai_port_space = ps;
	hints.ai_flags = passive ? RAI_PASSIVE : 0;
	must(rdma_getaddrinfo(address, port, &hints, &res), "rdma_getaddrinfo");
	attributes(&attr);
	must(rdma_create_ep(&made, res, NULL, &attr), "rdma_create_ep");
	rdma_freeaddrinfo(res);
	if (passive)
		must(rdma_listen(made, 0), "rdma_listen");
	return made;
}

static void regions(void)
{
	memset(readable, 'r', SIZE);
	memset(writable, '.', SIZE);
	if (!(msgs_mr = rdma_reg_msgs(id, msgs, SIZE)))
		die("rdma_reg_msgs");
	if (!(readable_mr = rdma_reg_read(id, readable, SIZE)))
		die("rdma_reg_read");
	if (!(writable_mr = rdma_reg_write(id, writable, SIZE)))
		die("rdma_reg_write");
}

static struct ibv_sge piece(char *at, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = msgs_mr->lkey };

	return sge;
}

static void *context(uintptr_t n)
{
	return (void *)n;
}

/* x is the active side. */
static void x(const char *address, const char *port, const char *next)
{
	struct ibv_sge two[2];
	struct rdma_cm_id *ud;
	struct rdma_conn_param param;
	struct ibv_ah *ah;
	struct info peer;

	id = endpoint(address, port, 0, RDMA_PS_TCP);
	regions();
	must(rdma_post_recv(id, context(1), msgs, sizeof(peer), msgs_mr), "rdma_post_recv");
	must(rdma_connect(id, NULL), "rdma_connect");
	must(rdma_post_send(id, context(2), "hello", 5, NULL, IBV_SEND_INLINE), "rdma_post_send");
	sent(id);
	received(id, NULL);
	memcpy(&peer, msgs, sizeof(peer));

	memcpy(msgs, "two pieces", 10);
	two[0] = piece(msgs, 4);
	two[1] = piece(msgs + 4, 6);
	must(rdma_post_sendv(id, context(3), two, 2, 0), "rdma_post_sendv");
	sent(id);

	must(rdma_post_read(id, context(4), msgs, 8, msgs_mr, 0, be64toh(peer.read_addr), be32toh(peer.read_key)),
	     "rdma_post_read");
	sent(id);
	printf("data %.8s\n", msgs);
	two[0] = piece(msgs + 20, 3);
	two[1] = piece(msgs + 30, 3);
	must(rdma_post_readv(id, context(5), two, 2, 0, be64toh(peer.read_addr), be32toh(peer.read_key)),
	     "rdma_post_readv");
	sent(id);
	printf("data %.3s %.3s\n", msgs + 20, msgs + 30);

	memcpy(msgs, "written", 7);
	must(rdma_post_write(id, context(6), msgs, 7, msgs_mr, 0, be64toh(peer.write_addr), be32toh(peer.write_key)),
	     "rdma_post_write");
	sent(id);
	memcpy(msgs + 20, "and in ", 7);
	memcpy(msgs + 30, "pieces", 6);
	two[0] = piece(msgs + 20, 7);
	two[1] = piece(msgs + 30, 6);
	must(rdma_post_writev(id, context(7), two, 2, 0, be64toh(peer.write_addr) + 8, be32toh(peer.write_key)),
	     "rdma_post_writev");
	sent(id);
	must(rdma_post_send(id, context(8), msgs, 0, msgs_mr, 0), "rdma_post_send");
	sent(id);

	ud = endpoint(address, next, 0, RDMA_PS_UDP);
	memset(&param, 0, sizeof(param));
	must(rdma_connect(ud, &param), "rdma_connect");
	ah = ibv_create_ah(ud->pd, &ud->event->param.ud.ah_attr);
	if (!ah)
		die("ibv_create_ah");
	must(rdma_post_ud_send(ud, context(9), "datagram", 8, NULL, IBV_SEND_INLINE, ah, ud->event->param.ud.qp_num),
	     "rdma_post_ud_send");
	sent(ud);
	ibv_destroy_ah(ah);
	rdma_destroy_ep(ud);
}

/* y is the passive side. */
static void y(const char *address, const char *port, const char *next)
{
	struct rdma_cm_id *listener = endpoint(address, port, 1, RDMA_PS_TCP);
	struct rdma_cm_id *ud_listener = endpoint(address, next, 1, RDMA_PS_UDP);
	struct rdma_conn_param param;
	struct ibv_sge two[2];
	struct rdma_cm_id *ud;
	struct ibv_mr *ud_mr;
	struct info own;

	printf("ready\n");
	fflush(stdout);
	must(rdma_get_request(listener, &id), "rdma_get_request");
	regions();
	must(rdma_post_recv(id, context(1), msgs, 16, msgs_mr), "rdma_post_recv");
	two[0] = piece(msgs + 16, 4);
	two[1] = piece(msgs + 20, 60);
	must(rdma_post_recvv(id, context(2), two, 2), "rdma_post_recvv");
	must(rdma_post_recv(id, context(3), msgs + 100, 16, msgs_mr), "rdma_post_recv");
	must(rdma_accept(id, NULL), "rdma_accept");
	received(id, msgs);

	own.read_addr = htobe64((uintptr_t)readable);
	own.write_addr = htobe64((uintptr_t)writable);
	own.read_key = htobe32(readable_mr->rkey);
	own.write_key = htobe32(writable_mr->rkey);
	must(rdma_post_send(id, context(4), &own, sizeof(own), NULL, IBV_SEND_INLINE), "rdma_post_send");
	sent(id);
	received(id, msgs + 16);
	received(id, NULL);
	printf("data %.21s\n", writable);

	must(rdma_get_request(ud_listener, &ud), "rdma_get_request");
	if (!(ud_mr = rdma_reg_msgs(ud, msgs, SIZE)))
		die("rdma_reg_msgs");
	must(rdma_post_recv(ud, context(5), msgs, SIZE, ud_mr), "rdma_post_recv");
	memset(&param, 0, sizeof(param));
	param.qp_num = ud->qp->qp_num;
	must(rdma_accept(ud, &param), "rdma_accept");
	received(ud, NULL);
	printf("data %.8s\n", msgs + GRH);
	must(rdma_dereg_mr(ud_mr), "rdma_dereg_mr");
	rdma_destroy_ep(ud);
	rdma_destroy_ep(ud_listener);
	rdma_destroy_ep(listener);
}

int main(int argc, char **argv)
{
	char next[16];

	if (argc != 4)
		return 2;
	if (rdma_seterrno(0) != 0 || rdma_seterrno(EBUSY) != -1 || errno != EBUSY)
		die("rdma_seterrno");
	snprintf(next, sizeof(next), "%d", atoi(argv[3]) + 1);
	(argv[1][0] == 'x' ? x : y)(argv[2], argv[3], next);
	rdma_disconnect(id);
	must(rdma_dereg_mr(msgs_mr), "rdma_dereg_mr");
	must(rdma_dereg_mr(readable_mr), "rdma_dereg_mr");
	must(rdma_dereg_mr(writable_mr), "rdma_dereg_mr");
	rdma_destroy_ep(id);
	return 0;
}
