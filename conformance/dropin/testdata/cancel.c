// SPDX-License-Identifier: BSD-2-Clause

// pthread_cancel ends threads that wait in a call of libibverbs or librdmacm, as it does where rdma-core waits in a
// system call. The objects stay usable. Usage: cancel ADDRESS CASE

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static struct sockaddr_in address = {.sin_family = AF_INET};
static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static struct rdma_event_channel *connections;
static struct rdma_cm_id *id;
static int fds[2];
static atomic_int cleaned, begun;

static void clean(void *none)
{
	(void)none;
	cleaned++;
}

static void *run(void *call)
{
	pthread_cleanup_push(clean, NULL);
	begun = 1;
	((void (*)(void))call)();
	pthread_cleanup_pop(0);
	return NULL;
}

// cancel cancels a thread that makes a call, before it waits or while it does.
static void cancel(void (*call)(void))
{
	for (int i = 0; i < 40; i++) {
		void *result = NULL;
		pthread_t t;

		cleaned = begun = 0;
		CHECK(!pthread_create(&t, NULL, run, (void *)call));
		while (i % 4 && !begun)
			usleep(100);
		usleep(i * 7919 % 3000);
		CHECK(!pthread_cancel(t));
		CHECK(!pthread_join(t, &result));
		CHECK(result == PTHREAD_CANCELED);
		CHECK(cleaned == 1 || i % 4 == 0); // in the latter case the call may not have begun
	}
}

static void get_cq_event(void)
{
	struct ibv_cq *cq;
	void *of;

	ibv_get_cq_event(completions, &cq, &of);
}

static void get_async_event(void)
{
	struct ibv_async_event e;

	ibv_get_async_event(context, &e);
}

static void get_cm_event(void)
{
	struct rdma_cm_event *e;

	rdma_get_cm_event(connections, &e);
}

// what_comes_next reads the next event of a channel after threads that waited for it were cancelled.
static void what_comes_next(void)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *resolves;

	CHECK(!rdma_create_id(connections, &resolves, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(resolves, NULL, (struct sockaddr *)&address, 1000));
	CHECK(!rdma_get_cm_event(connections, &e) && e->event == RDMA_CM_EVENT_ADDR_RESOLVED && e->id == resolves);
	CHECK(!rdma_ack_cm_event(e) && !rdma_destroy_id(resolves));
}

static void events(void)
{
	cancel(get_cm_event);
	what_comes_next();
	cancel(get_async_event);
	cancel(get_cq_event);
	CHECK(!ibv_destroy_comp_channel(completions));
}

static void *get_gone(void *none)
{
	get_cm_event(); // never returns
	return none;
}

// Destroys the channel of a waiting thread before cancelling the thread, like rping.
static void gone(void)
{
	void *result;
	pthread_t t;

	CHECK(!pthread_create(&t, NULL, get_gone, NULL));
	usleep(10000);
	rdma_destroy_event_channel(connections);
	usleep(10000);
	CHECK(!pthread_cancel(t) && !pthread_join(t, &result) && result == PTHREAD_CANCELED);
}

// A call is a cancellation point even if it need not wait, and then consumes nothing.
static void *pending(void *none)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	begun = 1;
	while (begun != 2)
		usleep(100);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	get_cm_event();
	begun = 3;
	return none;
}

// Threads with cancellation disabled are not cancelled.
static void *disabled(void *none)
{
	struct rdma_cm_event *e;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	begun = 1;
	CHECK(!rdma_get_cm_event(connections, &e));
	CHECK(!rdma_ack_cm_event(e));
	begun = 2;
	return none;
}

static void states(void)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *resolves;
	void *result;
	pthread_t t;

	CHECK(!rdma_create_id(connections, &resolves, NULL, RDMA_PS_TCP));
	CHECK(!pthread_create(&t, NULL, pending, NULL));
	while (begun != 1)
		usleep(100);
	CHECK(!rdma_resolve_addr(resolves, NULL, (struct sockaddr *)&address, 1000));
	CHECK(!pthread_cancel(t));
	begun = 2;
	CHECK(!pthread_join(t, &result) && result == PTHREAD_CANCELED && begun == 2);
	CHECK(!rdma_get_cm_event(connections, &e) && !rdma_ack_cm_event(e));

	begun = 0;
	CHECK(!pthread_create(&t, NULL, disabled, NULL));
	while (!begun)
		usleep(100);
	usleep(10000);
	CHECK(!pthread_cancel(t));
	usleep(10000);
	CHECK(begun == 1);
	CHECK(!rdma_resolve_route(resolves, 1000));
	CHECK(!pthread_join(t, &result) && result == NULL && begun == 2);
	CHECK(!rdma_destroy_id(resolves));
}

static void get_request(void)
{
	struct rdma_cm_id *request;

	rdma_get_request(id, &request);
}

static void connect_id(void)
{
	struct rdma_conn_param param = {.retry_count = 7};
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct rdma_addrinfo info = {.ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC};
	struct rdma_addrinfo *list;
	struct rdma_cm_id *connects;
	char host[64], port[16];

	inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(id)));
	CHECK(!rdma_getaddrinfo(host, port, &info, &list));
	CHECK(!rdma_create_ep(&connects, list, NULL, &attr));
	rdma_connect(connects, &param); // no reply
}

// With identifiers without a channel, the calls themselves wait.
static void synchronous(void)
{
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 64));
	cancel(get_request);
	cancel(connect_id);
}

static void accept_socket(void) { raccept(fds[0], NULL, NULL); }

static void receive(void)
{
	char b;

	rrecv(fds[0], &b, 1, 0);
}

static void poll_sockets(void)
{
	struct pollfd all[] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};

	rpoll(all, 2, -1);
}

static void select_socket(void)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fds[0], &set);
	rselect(fds[0] + 1, &set, NULL, NULL, NULL);
}

static void send_much(void)
{
	static char much[1 << 20];

	for (;;)
		rsend(fds[0], much, sizeof much, 0);
}

static void sockets(void)
{
	socklen_t length = sizeof address;
	char b = 7;
	int listens;

	CHECK((listens = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!rbind(listens, (struct sockaddr *)&address, length) && !rlisten(listens, 5));
	CHECK(!rgetsockname(listens, (struct sockaddr *)&address, &length));
	fds[0] = listens;
	cancel(accept_socket);
	CHECK((fds[1] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!rconnect(fds[1], (struct sockaddr *)&address, length));
	CHECK((fds[0] = raccept(listens, NULL, NULL)) >= 0);
	cancel(receive);
	cancel(poll_sockets);
	cancel(select_socket);
	CHECK(rsend(fds[1], &b, 1, 0) == 1 && rrecv(fds[0], &b, 1, 0) == 1 && b == 7);
	cancel(send_much);
	CHECK(!rclose(fds[1]) && !rclose(listens));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"events", events}, {"gone", gone}, {"states", states}, {"synchronous", synchronous},
		{"sockets", sockets}};
	struct ibv_device **list;
	int n = 0;

	CHECK(argc == 3 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	alarm(120);
	CHECK((list = ibv_get_device_list(&n)) && n > 0 && (context = ibv_open_device(list[0])));
	CHECK((completions = ibv_create_comp_channel(context)) && (connections = rdma_create_event_channel()));
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (!strcmp(argv[2], cases[i].name)) {
			struct ibv_port_attr port;

			cases[i].run();
			CHECK(!ibv_query_port(context, 1, &port));
			printf("%s: fine\n", argv[2]);
			return 0;
		}
	return 2;
}
