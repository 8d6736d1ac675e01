// SPDX-License-Identifier: BSD-2-Clause

// What programs expect of librdmacm that have no event channel, and that keep a context of a list which they have freed, or of
// an identifier which they have destroyed.
// Usage: manager ADDRESS
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

#define WANT(what) \
	do { \
		if (!(what)) { \
			perror(#what); \
			exit(1); \
		} \
	} while (0)

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(1)};
	struct ibv_context **list;
	struct ibv_context *context;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	int n = 0;

	WANT(argc == 2 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
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
	return 0;
}
