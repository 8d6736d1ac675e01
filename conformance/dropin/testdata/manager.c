// SPDX-License-Identifier: BSD-2-Clause

// Behavior of librdmacm that programs rely on: without an event channel, and with a context of a freed list or a
// destroyed identifier. Host names are resolved by the C library. Usage: manager ADDRESS NAME
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT(what) \
	do { \
		if (!(what)) { \
			perror(#what); \
			exit(1); \
		} \
	} while (0)

static void names(const char *name)
{
	struct rdma_addrinfo hints = {.ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP}, *ours = NULL;
	struct addrinfo wants = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *theirs = NULL;
	int error = getaddrinfo(name, "7471", &wants, &theirs);

	WANT(rdma_getaddrinfo(name, "7471", &hints, &ours) == error);
	if (!error) {
		WANT(ours->ai_dst_len == theirs->ai_addrlen && !memcmp(ours->ai_dst_addr, theirs->ai_addr, theirs->ai_addrlen));
		rdma_freeaddrinfo(ours);
		freeaddrinfo(theirs);
	}
	hints.ai_flags = RAI_NUMERICHOST;
	WANT(rdma_getaddrinfo(name, "7471", &hints, &ours) == EAI_NONAME);
	hints.ai_flags = 0, hints.ai_family = AF_INET6;
	WANT(rdma_getaddrinfo("192.0.2.1", "7471", &hints, &ours) < 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(1)};
	struct ibv_context **list;
	struct ibv_context *context;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	int n = 0;

	WANT(argc == 3 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	WANT(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	WANT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
	WANT(rdma_resolve_route(id, 1000) == 0);
	WANT(id->verbs && id->pd);
	context = id->verbs;
	WANT(rdma_destroy_id(id) == 0);
	pd = ibv_alloc_pd(context);
	WANT(pd && ibv_dealloc_pd(pd) == 0);

	list = rdma_get_devices(&n);
	WANT(list && n == 1);
	context = list[0];
	rdma_free_devices(list);
	pd = ibv_alloc_pd(context);
	WANT(pd && ibv_dealloc_pd(pd) == 0);
	names(argv[2]);
	return 0;
}
