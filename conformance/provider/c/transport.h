// SPDX-License-Identifier: BSD-2-Clause

// Data that requests move: payload.c, for transport.c.
#ifndef GOVERBS_TRANSPORT_H
#define GOVERBS_TRANSPORT_H

#include "emulated.h"

// Memory that keys were checked for.
struct memory {
	int n;
	struct { uint8_t *p; uint32_t n; } part[PIECES];
	uint64_t total;
};

bool add(struct memory *, void *, uint32_t);
bool open_memory(struct memory *, struct qp *, uint64_t address, uint32_t length, uint32_t key, uint32_t access);
bool open_all(struct memory *, struct qp *, const struct piece *, int n, uint32_t access);
void move(const struct memory *to, uint64_t skip, const struct memory *from, uint64_t size);

#endif
