// SPDX-License-Identifier: BSD-2-Clause

// Data movement of requests.
#include <string.h>

#include "transport.h"

bool add(struct memory *m, void *p, uint32_t n)
{
	m->part[m->n].p = p, m->part[m->n++].n = n;
	m->total += n;
	return true;
}

bool open_memory(struct memory *m, struct qp *qp, uint64_t address, uint32_t length, uint32_t key,
	uint32_t access)
{
	uint8_t *p = look_up(qp, address, length, key, access);
	return p && add(m, p, length);
}

bool open_all(struct memory *m, struct qp *qp, const struct piece *p, int n, uint32_t access)
{
	for (int i = 0; i < n; i++)
		if (!open_memory(m, qp, p[i].address, p[i].length, p[i].key, access))
			return false;
	return true;
}

// move copies size bytes to to, after its first skip bytes.
void move(const struct memory *to, uint64_t skip, const struct memory *from, uint64_t size)
{
	int f = 0;
	uint32_t used = 0;
	for (int t = 0; t < to->n && size; t++) {
		uint64_t at = skip < to->part[t].n ? skip : to->part[t].n;
		skip -= at;
		while (at < to->part[t].n && size) {
			while (f < from->n && used == from->part[f].n)
				f++, used = 0;
			if (f == from->n)
				return;
			uint64_t n = to->part[t].n - at, have = from->part[f].n - used;
			n = n < have ? n : have;
			n = n < size ? n : size;
			memmove(to->part[t].p + at, from->part[f].p + used, n);
			at += n, used += n, size -= n;
		}
	}
}
