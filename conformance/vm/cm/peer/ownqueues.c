// SPDX-License-Identifier: BSD-2-Clause

// A library to preload that gives each queue pair of a program separate completion queues. cmtime before rdma-core 52
// passes none for its first queue pair; rdma_create_qp creates them and stores them in the attributes, which cmtime
// then uses for all other queue pairs.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include <rdma/rdma_cma.h>

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	int (*create)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *) = dlsym(RTLD_NEXT, "rdma_create_qp");
	struct ibv_qp_init_attr own = *attr;

	own.send_cq = own.recv_cq = NULL;
	return create(id, pd, &own);
}
