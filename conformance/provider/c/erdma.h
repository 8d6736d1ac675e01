// SPDX-License-Identifier: BSD-2-Clause

// The driver of an erdma adapter: erdma.c has its commands, erdma_queues.c its queues.
#ifndef GOVERBS_ERDMA_H
#define GOVERBS_ERDMA_H

#include "idle.h"

enum { SEND_BLOCK = 32, BLOCKS = 4, RECEIVE = 32, ENTRY = 32 }; // BLOCKS is the maximum for a request

bool erdma_next_send(struct qp *, struct request *);
bool erdma_next_receive(struct qp *, struct receive *);
void erdma_consume_receive(struct qp *, const struct receive *);
bool erdma_complete(struct cq *, const struct completion *);
bool erdma_take_request(struct cq *);

#endif
