// SPDX-License-Identifier: BSD-2-Clause

// The driver of an EFA adapter: efa.c has its commands, efa_queues.c its queues.
#ifndef GOVERBS_EFA_H
#define GOVERBS_EFA_H

#include "emulated.h"

enum { RECEIVE_SIZE = 16, UNKNOWN_ADDRESS = 0xffff, EFA_CQ_BELL = 1 }; // index of the doorbell in its page

uint32_t efa_address_of(struct pd *); // number of an address handle for this device, or UNKNOWN_ADDRESS
bool efa_address_is_local(struct qp *, uint32_t address, bool *here);

bool efa_rung(void);
bool efa_next_send(struct qp *, struct request *);
bool efa_next_receive(struct qp *, struct receive *);
void efa_consume_receive(struct qp *, const struct receive *);
bool efa_complete(struct cq *, const struct completion *);
bool efa_take_request(struct cq *);
void efa_reset_qp(struct qp *);

#endif
