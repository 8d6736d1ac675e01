// SPDX-License-Identifier: BSD-2-Clause

// The adapter: transport.c and tags.c execute requests, payload.c moves their data.
#ifndef GOVERBS_TRANSPORT_H
#define GOVERBS_TRANSPORT_H

#include "emulated.h"

// Memory whose keys were checked.
struct memory {
	int n;
	struct { uint8_t *p; uint32_t n; } part[PIECES];
	uint64_t total;
};

// payload.c
bool add(struct memory *, void *, uint32_t);
bool open_memory(struct memory *, struct qp *, uint64_t address, uint32_t length, uint32_t key, uint32_t access);
bool open_all(struct memory *, struct qp *, const struct piece *, int n, uint32_t access);
void move(const struct memory *to, uint64_t skip, const struct memory *from, uint64_t size);

// transport.c
void complete(struct cq *, const struct completion *);
enum status land(struct qp *, struct qp *from, const struct request *, const struct memory *payload,
	const struct tagged *);
enum status refused(struct qp *, enum status); // fails the queue pair and raises an event
enum status carry_out(struct qp *, const struct request *, uint32_t *length);
bool may_retry(struct qp *, enum status); // retry the request at the head?

// packets.c
enum status send_packets(struct qp *, const struct request *, struct memory *data);

// tags.c
enum status change_tags(struct qp *, const struct request *);
enum status land_tagged(struct qp *, struct qp *from, const struct request *, const struct memory *payload);
bool run_rendezvous(struct qp *);

#endif
