// SPDX-License-Identifier: BSD-2-Clause

/*
 * A C peer with librpma for the tests of package rpma. Each role prints the result of each call that may fail, each
 * completion, each event, and the received data, line by line. Tests compare this with the output of Go in the same
 * role.
 *
 * rpmapeer x|y ADDRESS PORT: every operation; x connects, y listens.
 * rpmapeer s|r ADDRESS PORT: a rejection, a shared receive queue and a shared completion channel; s connects, r
 * listens.
 * rpmapeer errors ADDRESS PORT: calls that fail, on a connection with a "serve".
 * rpmapeer full ADDRESS PORT: full queues, on a connection with a "serve".
 * rpmapeer flush ADDRESS PORT: one flush of a region of a "guard", which grants flushes but no reads.
 * rpmapeer memory|own ADDRESS PORT: calls for which each allocation fails in turn, in the libraries below librpma or in
 *	librpma itself; see faults.c.
 * rpmapeer watch|watched ADDRESS PORT: the events of a connection until it ends; watch connects, watched listens.
 * rpmapeer bench ADDRESS PORT CALLS: for each line of input, the median times of operations in nanoseconds, on a
 *	connection with a "serve".
 * rpmapeer serve ADDRESS PORT: accepts one connection, and closes it when the peer does.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <librpma.h>

enum { SIZE = 4096, LARGE = 1 << 20, DESC = 21, MSG = 256, WARM = 50 * 1000 * 1000 };

static struct rpma_peer *peer;
static struct rpma_conn *conn;
static struct rpma_cq *cq;
static char *memory, *msgs;
static struct rpma_mr_local *mr, *msgs_mr;
static struct rpma_mr_remote *remote;

static void die(const char *what, int ret)
{
	printf("failed: %s: %s\n", what, rpma_err_2str(ret));
	exit(1);
}

static void must(int ret, const char *what)
{
	if (ret)
		die(what, ret);
}

static void result(const char *what, int ret)
{
	printf("%s: %d\n", what, ret);
}

static void event(void)
{
	enum rpma_conn_event e = RPMA_CONN_UNDEFINED;

	must(rpma_conn_next_event(conn, &e), "rpma_conn_next_event");
	printf("event %d\n", e);
}

static struct ibv_wc kept[8];
static int nkept;

/* next waits for the next completion of a receive, or of anything else; their relative order is undefined. */
static struct ibv_wc next(int receive)
{
	struct ibv_wc wc;
	int i, ret, n = 0;

	for (i = 0; i < nkept; i++) {
		if (!(kept[i].opcode & IBV_WC_RECV) == !receive) {
			wc = kept[i];
			memmove(kept + i, kept + i + 1, (--nkept - i) * sizeof(wc));
			return wc;
		}
	}
	for (;;) {
		while ((ret = rpma_cq_get_wc(cq, 1, &wc, &n)) == RPMA_E_NO_COMPLETION)
			;
		must(ret, "rpma_cq_get_wc");
		if (wc.status != IBV_WC_SUCCESS || !(wc.opcode & IBV_WC_RECV) == !receive)
			return wc;
		if (nkept == 8)
			die("completions", RPMA_E_UNKNOWN);
		kept[nkept++] = wc;
	}
}

static void completion(int receive)
{
	struct ibv_wc wc = next(receive);

	printf("completion: context %" PRIu64 " status %d", wc.wr_id, wc.status);
	if (wc.status == IBV_WC_SUCCESS) {
		printf(" opcode %d", wc.opcode);
		if (receive) {
			printf(" bytes %u", wc.byte_len);
			if (wc.wc_flags & IBV_WC_WITH_IMM)
				printf(" imm %08x", ntohl(wc.imm_data));
		}
	}
	printf("\n");
}

static void sent(void)
{
	completion(0);
}

static void received(void)
{
	completion(1);
}

static const void *context(uintptr_t n)
{
	return (const void *)n;
}

static void open_peer(const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *device;

	must(rpma_utils_get_ibv_context(address, type, &device), "rpma_utils_get_ibv_context");
	must(rpma_peer_new(device, &peer), "rpma_peer_new");
}

static char *map(size_t size)
{
	void *at;

	if (posix_memalign(&at, 4096, size))
		die("posix_memalign", RPMA_E_NOMEM);
	memset(at, 0, size);
	return at;
}

/* regions registers memory. A device that flushes to persistent memory accepts no other memory for such a flush. */
static void regions(size_t size, int usage)
{
	int ret;

	memory = map(size);
	msgs = map(SIZE);
	ret = rpma_mr_reg(peer, memory, size, usage, &mr);
	if (ret && usage & RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT)
		ret = rpma_mr_reg(peer, memory, size, usage & ~RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &mr);
	must(ret, "rpma_mr_reg");
	must(rpma_mr_reg(peer, msgs, SIZE, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &msgs_mr), "rpma_mr_reg");
}

static struct rpma_conn_cfg *config(void)
{
	struct rpma_conn_cfg *cfg;

	must(rpma_conn_cfg_new(&cfg), "rpma_conn_cfg_new");
	must(rpma_conn_cfg_set_timeout(cfg, 5000), "rpma_conn_cfg_set_timeout");
	must(rpma_conn_cfg_set_sq_size(cfg, 16), "rpma_conn_cfg_set_sq_size");
	must(rpma_conn_cfg_set_rq_size(cfg, 16), "rpma_conn_cfg_set_rq_size");
	must(rpma_conn_cfg_set_cq_size(cfg, 64), "rpma_conn_cfg_set_cq_size");
	return cfg;
}

static void connected(void)
{
	event();
	must(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
}

/* connect_to connects with private data, and reads the peer's region and configuration from the peer's private data. */
static void connect_to(const char *address, const char *port, int receives)
{
	struct rpma_conn_private_data data = { .ptr = "from x", .len = 7 };
	struct rpma_conn_cfg *cfg = config();
	struct rpma_conn_req *req;
	struct rpma_peer_cfg *pcfg;
	size_t size;
	bool direct;
	int i, flush, ret, tries = 0;

	for (;;) {
		must(rpma_conn_req_new(peer, address, port, cfg, &req), "rpma_conn_req_new");
		for (i = 0; i < receives; i++)
			must(rpma_conn_req_recv(req, msgs_mr, i * MSG, MSG, context(100 + i)), "rpma_conn_req_recv");
		must(rpma_conn_req_connect(&req, &data, &conn), "rpma_conn_req_connect");
		if (tries++ > 100)
			break;
		/* the listener may not be ready yet */
		enum rpma_conn_event e;
		must(rpma_conn_next_event(conn, &e), "rpma_conn_next_event");
		if (e == RPMA_CONN_ESTABLISHED) {
			printf("event %d\n", e);
			break;
		}
		must(rpma_conn_delete(&conn), "rpma_conn_delete");
		usleep(20000);
	}
	must(rpma_conn_cfg_delete(&cfg), "rpma_conn_cfg_delete");
	must(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
	must(rpma_conn_get_private_data(conn, &data), "rpma_conn_get_private_data");
	must(rpma_mr_remote_from_descriptor(data.ptr, DESC, &remote), "rpma_mr_remote_from_descriptor");
	must(rpma_mr_remote_get_size(remote, &size), "rpma_mr_remote_get_size");
	must(rpma_mr_remote_get_flush_type(remote, &flush), "rpma_mr_remote_get_flush_type");
	printf("remote: size %zu flush %d\n", size, flush);
	ret = rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, context(99));
	result("persistent flush before the peer's configuration", ret);
	must(rpma_peer_cfg_from_descriptor((char *)data.ptr + DESC, 1, &pcfg), "rpma_peer_cfg_from_descriptor");
	must(rpma_peer_cfg_get_direct_write_to_pmem(pcfg, &direct), "rpma_peer_cfg_get_direct_write_to_pmem");
	printf("peer: direct write to pmem %d\n", direct);
	must(rpma_conn_apply_remote_peer_cfg(conn, pcfg), "rpma_conn_apply_remote_peer_cfg");
	must(rpma_peer_cfg_delete(&pcfg), "rpma_peer_cfg_delete");
}

/* accept_one accepts one connection and sends the peer the region and whether direct writes to pmem are possible. */
static void accept_one(const char *address, const char *port, int receives)
{
	struct rpma_conn_private_data data;
	struct rpma_conn_cfg *cfg = config();
	struct rpma_conn_req *req;
	struct rpma_peer_cfg *pcfg;
	struct rpma_ep *ep;
	uint8_t own[DESC + 1];
	size_t size;
	int i;

	must(rpma_peer_cfg_new(&pcfg), "rpma_peer_cfg_new");
	must(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true), "rpma_peer_cfg_set_direct_write_to_pmem");
	must(rpma_mr_get_descriptor_size(mr, &size), "rpma_mr_get_descriptor_size");
	if (size != DESC)
		die("rpma_mr_get_descriptor_size", RPMA_E_UNKNOWN);
	must(rpma_mr_get_descriptor(mr, own), "rpma_mr_get_descriptor");
	must(rpma_peer_cfg_get_descriptor(pcfg, own + DESC), "rpma_peer_cfg_get_descriptor");
	must(rpma_peer_cfg_delete(&pcfg), "rpma_peer_cfg_delete");
	must(rpma_ep_listen(peer, address, port, &ep), "rpma_ep_listen");
	fprintf(stderr, "ready\n");
	must(rpma_ep_next_conn_req(ep, cfg, &req), "rpma_ep_next_conn_req");
	must(rpma_conn_req_get_private_data(req, &data), "rpma_conn_req_get_private_data");
	printf("private data %.6s\n", (char *)data.ptr);
	for (i = 0; i < receives; i++)
		must(rpma_conn_req_recv(req, msgs_mr, i * MSG, MSG, context(100 + i)), "rpma_conn_req_recv");
	data.ptr = own;
	data.len = sizeof(own);
	must(rpma_conn_req_connect(&req, &data, &conn), "rpma_conn_req_connect");
	must(rpma_conn_cfg_delete(&cfg), "rpma_conn_cfg_delete");
	connected();
	must(rpma_ep_shutdown(&ep), "rpma_ep_shutdown");
}

static void end(void)
{
	must(rpma_conn_delete(&conn), "rpma_conn_delete");
	if (remote)
		must(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
	must(rpma_mr_dereg(&mr), "rpma_mr_dereg");
	must(rpma_mr_dereg(&msgs_mr), "rpma_mr_dereg");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
}

static const int local_usage = RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC;
static const int remote_usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY |
	RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;

/* x is the active side. */
static void x(const char *address, const char *port)
{
	const int always = RPMA_F_COMPLETION_ALWAYS, on_error = RPMA_F_COMPLETION_ON_ERROR;
	int ret;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	regions(SIZE, local_usage);
	connect_to(address, port, 2);
	strcpy(memory, "written by x");
	must(rpma_write(conn, remote, 64, mr, 0, 13, always, context(1)), "rpma_write");
	sent();
	must(rpma_flush(conn, remote, 64, 13, RPMA_FLUSH_TYPE_VISIBILITY, always, context(2)), "rpma_flush");
	sent();
	must(rpma_write(conn, remote, 128, mr, 0, 12, on_error, context(3)), "rpma_write");
	ret = rpma_flush(conn, remote, 128, 12, RPMA_FLUSH_TYPE_PERSISTENT, always, context(4));
	result("persistent flush", ret);
	if (!ret)
		sent();
	must(rpma_atomic_write(conn, remote, 256, "8 bytes!", always, context(5)), "rpma_atomic_write");
	sent();
	must(rpma_read(conn, mr, 1024, remote, 64, 256, always, context(6)), "rpma_read");
	sent();
	printf("read %.12s, %.12s, %.8s\n", memory + 1024, memory + 1088, memory + 1216);
	must(rpma_write_with_imm(conn, remote, 512, mr, 0, 7, always, 0x01020304, context(7)), "rpma_write_with_imm");
	sent();
	must(rpma_write_with_imm(conn, NULL, 0, NULL, 0, 0, always, 0xfedcba98, context(8)), "rpma_write_with_imm");
	sent();
	must(rpma_read(conn, NULL, 0, NULL, 0, 0, always, context(12)), "rpma_read");
	sent();
	must(rpma_write(conn, NULL, 0, NULL, 0, 0, always, context(13)), "rpma_write");
	sent();
	strcpy(msgs + 1024, "a message");
	must(rpma_send(conn, msgs_mr, 1024, 9, always, context(9)), "rpma_send");
	sent();
	must(rpma_send_with_imm(conn, msgs_mr, 1026, 7, always, 0xa1b2c3d4, context(10)), "rpma_send_with_imm");
	sent();
	must(rpma_send_with_imm(conn, NULL, 0, 0, always, 5, context(11)), "rpma_send_with_imm");
	sent();
	received(); /* replies of y */
	received();
	printf("received %.9s, %.7s\n", msgs, msgs + MSG);
	event(); /* y disconnects */
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	end();
}

/* y is the passive side. */
static void y(const char *address, const char *port)
{
	const int always = RPMA_F_COMPLETION_ALWAYS;
	int i;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	regions(SIZE, remote_usage);
	accept_one(address, port, 5);
	for (i = 0; i < 5; i++)
		received();
	printf("written %.12s, %.12s, %.8s, %.7s\n", memory + 64, memory + 128, memory + 256, memory + 512);
	printf("received %.9s, %.7s\n", msgs + 2 * MSG, msgs + 3 * MSG);
	strcpy(msgs + 2048, "an answer");
	must(rpma_send(conn, msgs_mr, 2048, 9, always, context(1)), "rpma_send");
	sent();
	must(rpma_send_with_imm(conn, msgs_mr, 2050, 7, always, 77, context(2)), "rpma_send_with_imm");
	sent();
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	event();
	end();
}

/* attempt requests a connection whose queues share a channel, and prints the result. */
static void attempt(const char *address, const char *port)
{
	struct rpma_conn_private_data data = { .ptr = "from s", .len = 7 };
	struct rpma_conn_cfg *cfg = config();
	struct rpma_conn_req *req;

	must(rpma_conn_cfg_set_rcq_size(cfg, 8), "rpma_conn_cfg_set_rcq_size");
	must(rpma_conn_cfg_set_compl_channel(cfg, true), "rpma_conn_cfg_set_compl_channel");
	must(rpma_conn_req_new(peer, address, port, cfg, &req), "rpma_conn_req_new");
	must(rpma_conn_req_recv(req, msgs_mr, 0, MSG, context(100)), "rpma_conn_req_recv");
	must(rpma_conn_req_connect(&req, &data, &conn), "rpma_conn_req_connect");
	event();
	must(rpma_conn_cfg_delete(&cfg), "rpma_conn_cfg_delete");
}

/* s is rejected and connects again. Its two sends and its receive complete in queues that share a channel. */
static void s(const char *address, const char *port)
{
	const int always = RPMA_F_COMPLETION_ALWAYS;
	struct rpma_conn_private_data data;
	int sends = 2, receives = 1;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	regions(SIZE, local_usage);
	attempt(address, port);
	must(rpma_conn_delete(&conn), "rpma_conn_delete");
	attempt(address, port);
	must(rpma_conn_get_private_data(conn, &data), "rpma_conn_get_private_data");
	printf("private data %.4s of %u bytes\n", (char *)data.ptr, data.len);
	must(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
	result("wait of a queue that shares its channel", rpma_cq_wait(cq));
	strcpy(msgs + 1024, "a message");
	must(rpma_send(conn, msgs_mr, 1024, 9, always, context(1)), "rpma_send");
	must(rpma_send_with_imm(conn, msgs_mr, 1026, 7, always, 0x01020304, context(2)), "rpma_send_with_imm");
	while (sends || receives) {
		struct rpma_cq *q;
		struct ibv_wc wc;
		bool receive;

		must(rpma_conn_wait(conn, 0, &q, &receive), "rpma_conn_wait");
		while (!rpma_cq_get_wc(q, 1, &wc, NULL)) {
			if (wc.status != IBV_WC_SUCCESS || !(wc.opcode & IBV_WC_RECV) != !receive)
				die("a completion", RPMA_E_UNKNOWN);
			*(receive ? &receives : &sends) -= 1;
		}
	}
	printf("received %.9s\n", msgs);
	event(); /* r disconnects */
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	end();
}

/* r rejects a request, accepts the next one, and receives in a shared receive queue with a separate completion
 * queue. */
static void r(const char *address, const char *port)
{
	struct rpma_conn_private_data data;
	struct rpma_conn_cfg *cfg = config();
	struct rpma_conn_req *req;
	struct rpma_srq_cfg *scfg;
	struct rpma_srq *srq;
	struct rpma_ep *ep;
	int i;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	regions(SIZE, remote_usage);
	must(rpma_ep_listen(peer, address, port, &ep), "rpma_ep_listen");
	fprintf(stderr, "ready\n");
	must(rpma_ep_next_conn_req(ep, cfg, &req), "rpma_ep_next_conn_req");
	must(rpma_conn_req_get_private_data(req, &data), "rpma_conn_req_get_private_data");
	printf("private data %.6s of %u bytes\n", (char *)data.ptr, data.len);
	must(rpma_conn_req_delete(&req), "rpma_conn_req_delete");
	must(rpma_srq_cfg_new(&scfg), "rpma_srq_cfg_new");
	must(rpma_srq_cfg_set_rq_size(scfg, 8), "rpma_srq_cfg_set_rq_size");
	must(rpma_srq_cfg_set_rcq_size(scfg, 8), "rpma_srq_cfg_set_rcq_size");
	must(rpma_srq_new(peer, scfg, &srq), "rpma_srq_new");
	must(rpma_srq_cfg_delete(&scfg), "rpma_srq_cfg_delete");
	for (i = 0; i < 2; i++)
		must(rpma_srq_recv(srq, msgs_mr, i * MSG, MSG, context(100 + i)), "rpma_srq_recv");
	must(rpma_conn_cfg_set_srq(cfg, srq), "rpma_conn_cfg_set_srq");
	must(rpma_ep_next_conn_req(ep, cfg, &req), "rpma_ep_next_conn_req");
	data.ptr = "to s";
	data.len = 5;
	must(rpma_conn_req_connect(&req, &data, &conn), "rpma_conn_req_connect");
	event();
	must(rpma_srq_get_rcq(srq, &cq), "rpma_srq_get_rcq");
	received();
	received();
	printf("received %.9s, %.7s\n", msgs, msgs + MSG);
	must(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
	strcpy(msgs + 2048, "an answer");
	must(rpma_send(conn, msgs_mr, 2048, 9, RPMA_F_COMPLETION_ALWAYS, context(1)), "rpma_send");
	sent();
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	event();
	must(rpma_conn_cfg_delete(&cfg), "rpma_conn_cfg_delete");
	must(rpma_ep_shutdown(&ep), "rpma_ep_shutdown");
	must(rpma_conn_delete(&conn), "rpma_conn_delete");
	must(rpma_srq_delete(&srq), "rpma_srq_delete");
	must(rpma_mr_dereg(&mr), "rpma_mr_dereg");
	must(rpma_mr_dereg(&msgs_mr), "rpma_mr_dereg");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
}

/* errors makes the calls that fail. */
static void errors(const char *address, const char *port)
{
	const int always = RPMA_F_COMPLETION_ALWAYS;
	struct rpma_mr_remote *none;
	struct rpma_peer_cfg *pcfg;
	struct rpma_mr_local *bad;
	struct ibv_wc wc;
	struct rpma_conn_private_data data;
	uint8_t desc[DESC] = { 0 };
	enum rpma_conn_event none_yet;
	int n, fd, ret;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	regions(SIZE, local_usage);
	result("register without a usage", rpma_mr_reg(peer, memory, SIZE, 0, &bad));
	result("register nothing", rpma_mr_reg(peer, memory, 0, local_usage, &bad));
	result("descriptor of no usage", rpma_mr_remote_from_descriptor(desc, DESC, &none));
	result("short descriptor", rpma_mr_remote_from_descriptor(desc, DESC - 1, &none));
	result("short configuration", rpma_peer_cfg_from_descriptor(desc, 0, &pcfg));
	connect_to(address, port, 0);
	result("no completion", rpma_cq_get_wc(cq, 1, &wc, &n));
	result("wait of a shared channel", rpma_conn_wait(conn, 0, &cq, NULL));
	must(rpma_conn_get_event_fd(conn, &fd), "rpma_conn_get_event_fd");
	n = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, n | O_NONBLOCK);
	ret = rpma_conn_next_event(conn, &none_yet);
	fcntl(fd, F_SETFL, n);
	/* librpma expects ENODATA, and librdmacm returns EAGAIN. */
	printf("no event: %d\n", ret == RPMA_E_PROVIDER ? RPMA_E_NO_EVENT : ret);
	result("write without flags", rpma_write(conn, remote, 0, mr, 0, 8, 0, NULL));
	result("read without flags", rpma_read(conn, mr, 0, remote, 0, 8, 0, NULL));
	result("send without flags", rpma_send(conn, msgs_mr, 0, 8, 0, NULL));
	result("send with immediate data without flags", rpma_send_with_imm(conn, msgs_mr, 0, 8, 0, 1, NULL));
	result("write with immediate data without flags", rpma_write_with_imm(conn, remote, 0, mr, 0, 8, 0, 1, NULL));
	result("atomic write without flags", rpma_atomic_write(conn, remote, 0, "8 bytes!", 0, NULL));
	result("flush without flags", rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, 0, NULL));
	result("atomic write to an odd place", rpma_atomic_write(conn, remote, 4, "8 bytes!", always, NULL));
	result("write of no region", rpma_write(conn, remote, 0, NULL, 0, 8, always, NULL));
	result("write to no region", rpma_write(conn, NULL, 0, mr, 0, 8, always, NULL));
	result("read into no region", rpma_read(conn, NULL, 0, remote, 0, 8, always, NULL));
	result("send of no region", rpma_send(conn, NULL, 0, 8, always, NULL));
	result("send of no region at an offset", rpma_send(conn, NULL, 8, 0, always, NULL));
	result("send with immediate data of no region", rpma_send_with_imm(conn, NULL, 0, 8, always, 1, NULL));
	result("receive into no region", rpma_recv(conn, NULL, 0, 8, NULL));
	must(rpma_conn_get_private_data(conn, &data), "rpma_conn_get_private_data");
	memcpy(desc, data.ptr, DESC);
	desc[17] ^= 0xff; /* a byte of the key */
	must(rpma_mr_remote_from_descriptor(desc, DESC, &none), "rpma_mr_remote_from_descriptor");
	must(rpma_write(conn, none, 0, mr, 0, 8, RPMA_F_COMPLETION_ON_ERROR, context(1)), "rpma_write");
	sent();
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	end();
}

/* full fills the queues: sends wait for receives, which a "serve" never posts, until the connection ends. Queues may
 * have more slots than requested. */
static void full(const char *address, const char *port)
{
	int ret, i, sends = 0, receives = 0;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	regions(SIZE, local_usage);
	connect_to(address, port, 0);
	while (!(ret = rpma_send(conn, msgs_mr, 0, MSG, RPMA_F_COMPLETION_ALWAYS, context(sends))))
		sends++;
	printf("room for 16 sends: %d, then %d\n", sends >= 16, ret);
	while (!(ret = rpma_recv(conn, msgs_mr, MSG, MSG, context(100 + receives))))
		receives++;
	printf("room for 16 receives: %d, then %d\n", receives >= 16, ret);
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	for (i = 0; i < sends + receives; i++) {
		struct ibv_wc wc = next(0); /* the opcode of a failed completion is undefined */

		if (wc.status != IBV_WC_WR_FLUSH_ERR)
			die("a completion", RPMA_E_UNKNOWN);
	}
	printf("all have ended\n");
	end();
}

static void flush(const char *address, const char *port)
{
	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	regions(SIZE, local_usage);
	connect_to(address, port, 0);
	must(rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, context(1)),
	     "rpma_flush");
	sent();
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	end();
}

/* the number of allocations up to the one that fails, and whether to count librpma's own or those of its libraries */
static volatile int32_t *faults;
static struct ibv_context *device;
static const char *own_address, *own_port;

static int new_peer(void)
{
	struct rpma_peer *p;
	int ret = rpma_peer_new(device, &p);

	return ret ? ret : rpma_peer_delete(&p);
}

static int new_region(void)
{
	struct rpma_mr_local *m;
	int ret = rpma_mr_reg(peer, memory, SIZE, local_usage, &m);

	return ret ? ret : rpma_mr_dereg(&m);
}

static int new_endpoint(void)
{
	struct rpma_ep *ep;
	int ret = rpma_ep_listen(peer, own_address, own_port, &ep);

	return ret ? ret : rpma_ep_shutdown(&ep);
}

static int new_request(void)
{
	struct rpma_conn_req *req;
	int ret = rpma_conn_req_new(peer, own_address, own_port, NULL, &req);

	return ret ? ret : rpma_conn_req_delete(&req);
}

static int new_srq(void)
{
	struct rpma_srq *srq;
	int ret = rpma_srq_new(peer, NULL, &srq);

	return ret ? ret : rpma_srq_delete(&srq);
}

/* without_memory prints each distinct code that a call returns when one of its allocations fails. */
static void without_memory(const char *what, int (*call)(void))
{
	bool seen[10] = { 0 };
	int n, left, ret;

	for (n = 1;; n++) {
		faults[0] = n;
		ret = call();
		left = faults[0];
		faults[0] = 0;
		if (left)
			break;
		if (ret)
			seen[RPMA_E_UNKNOWN - ret] = true;
	}
	must(ret, what);
	printf("%s:", what);
	for (n = 0; n < 10; n++)
		if (seen[n])
			printf(" %d", RPMA_E_UNKNOWN - n);
	printf("\n");
}

static void out_of_memory(const char *address, const char *port, int own)
{
	int fd = open(getenv("GOVERBS_FAULTS"), O_RDWR);

	faults = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || faults == MAP_FAILED)
		die("GOVERBS_FAULTS", RPMA_E_UNKNOWN);
	own_address = address;
	own_port = port;
	must(rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &device), "rpma_utils_get_ibv_context");
	must(rpma_peer_new(device, &peer), "rpma_peer_new");
	regions(SIZE, local_usage);
	faults[1] = own;
	without_memory("peer", new_peer);
	without_memory("region", new_region);
	without_memory("endpoint", new_endpoint);
	without_memory("request", new_request);
	without_memory("shared receive queue", new_srq);
}

/* print_events prints the events of the connection until it ends. It then waits for EOF on standard input, since the
 * other side would notice an earlier exit. It closes nothing, since the device may have been removed. */
static void print_events(void)
{
	for (;;) {
		enum rpma_conn_event e = RPMA_CONN_UNDEFINED;
		int ret = rpma_conn_next_event(conn, &e);

		printf("event %d, result %d\n", e, ret);
		if (e == RPMA_CONN_ESTABLISHED)
			continue;
		while (getchar() != EOF)
			;
		exit(0);
	}
}

static void watch(const char *address, const char *port)
{
	struct rpma_conn_cfg *cfg = config();
	struct rpma_conn_req *req;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	must(rpma_conn_req_new(peer, address, port, cfg, &req), "rpma_conn_req_new");
	must(rpma_conn_req_connect(&req, NULL, &conn), "rpma_conn_req_connect");
	print_events();
}

static void watched(const char *address, const char *port)
{
	struct rpma_conn_cfg *cfg = config();
	struct rpma_conn_req *req;
	struct rpma_ep *ep;

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	must(rpma_ep_listen(peer, address, port, &ep), "rpma_ep_listen");
	printf("ready\n");
	must(rpma_ep_next_conn_req(ep, cfg, &req), "rpma_ep_next_conn_req");
	must(rpma_conn_req_connect(&req, NULL, &conn), "rpma_conn_req_connect");
	print_events();
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void polled(void)
{
	struct ibv_wc wc;
	int ret, n;

	while ((ret = rpma_cq_get_wc(cq, 1, &wc, &n)) == RPMA_E_NO_COMPLETION)
		;
	must(ret, "rpma_cq_get_wc");
	if (wc.status != IBV_WC_SUCCESS)
		die("completion", RPMA_E_PROVIDER);
}

static int order(const void *a, const void *b)
{
	uint64_t p = *(const uint64_t *)a, q = *(const uint64_t *)b;

	return p < q ? -1 : p > q;
}

static void report(const char *what, uint64_t *times, int calls)
{
	qsort(times, calls, sizeof(*times), order);
	printf("%s %" PRIu64 "\n", what, times[calls / 2]);
}

static void write_and_flush(void)
{
	must(rpma_write(conn, remote, 0, mr, 0, 64, RPMA_F_COMPLETION_ON_ERROR, NULL), "rpma_write");
	must(rpma_flush(conn, remote, 0, 64, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_flush");
}

static void read_little(void)
{
	must(rpma_read(conn, mr, 0, remote, 0, 64, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_read");
}

static void write_much(void)
{
	must(rpma_write(conn, remote, 0, mr, 0, LARGE, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_write");
}

/* measure repeats an operation for WARM nanoseconds, and then measures calls repetitions. */
static void measure(const char *what, uint64_t *times, int calls, void (*operation)(void))
{
	uint64_t began = now();
	int i;

	while (now() - began < WARM) {
		operation();
		polled();
	}
	for (i = 0; i < calls; i++) {
		began = now();
		operation();
		polled();
		times[i] = now() - began;
	}
	report(what, times, calls);
}

/* bench runs a turn for each line of input. */
static void bench(const char *address, const char *port, int calls)
{
	uint64_t *times = calloc(calls, sizeof(*times));
	char line[8];

	open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	regions(LARGE, local_usage);
	connect_to(address, port, 0);
	while (fgets(line, sizeof(line), stdin)) {
		measure("write+flush", times, calls, write_and_flush);
		measure("read", times, calls, read_little);
		measure("write of 1 MiB", times, calls / 20, write_much);
	}
	free(times);
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	end();
}

/* serve provides a region for any operation of the peer, or one with another usage. */
static void serve(const char *address, const char *port, int usage)
{
	open_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	regions(LARGE, usage);
	accept_one(address, port, 0);
	event();
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	end();
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && !strcmp(argv[1], "x"))
		x(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "y"))
		y(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "s"))
		s(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "r"))
		r(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "errors"))
		errors(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "full"))
		full(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "watch"))
		watch(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "watched"))
		watched(argv[2], argv[3]);
	else if (argc == 5 && !strcmp(argv[1], "bench"))
		bench(argv[2], argv[3], atoi(argv[4]));
	else if (argc == 4 && !strcmp(argv[1], "serve"))
		serve(argv[2], argv[3], remote_usage);
	else if (argc == 4 && !strcmp(argv[1], "guard"))
		serve(argv[2], argv[3], RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	else if (argc == 4 && !strcmp(argv[1], "flush"))
		flush(argv[2], argv[3]);
	else if (argc == 4 && !strcmp(argv[1], "memory"))
		out_of_memory(argv[2], argv[3], 0);
	else if (argc == 4 && !strcmp(argv[1], "own"))
		out_of_memory(argv[2], argv[3], 1);
	else {
		fprintf(stderr, "usage: rpmapeer x|y|s|r|errors|full|flush|guard|memory|own|watch|watched|serve ADDRESS PORT, "
				"or bench ADDRESS PORT CALLS\n");
		return 2;
	}
	return 0;
}
