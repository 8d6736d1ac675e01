// SPDX-License-Identifier: BSD-2-Clause

// Writes a text record of a program's commands and queues to the file GOVERBS_RECORD, so that two programs can be
// compared. Addresses of the program are replaced by a placeholder; programs that compare memory map it at FIXED.
#include <stdarg.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

static const uint64_t FIXED = 1ull << 45, FIXED_SIZE = 1 << 20;

static FILE *record;

bool recording(void)
{
	const char *name = record ? NULL : getenv("GOVERBS_RECORD");
	if (name && (record = fopen(name, "we")))
		setvbuf(record, NULL, _IOLBF, 1 << 16); // programs may exit without flushing
	return record;
}

static bool is_address(uint64_t word)
{
	return word >> 32 && (word < FIXED || word >= FIXED + FIXED_SIZE) && mapped(word);
}

// write_words writes bytes as words. Trailing zeros are only counted.
static void write_words(const char *what, const void *p, size_t size, bool addresses)
{
	size_t used = size;
	while (used && !((const uint8_t *)p)[used - 1])
		used--;
	fprintf(record, "  %s, %zu bytes:", what, size);
	for (size_t at = 0; at < used; at += 8) {
		uint64_t word = 0;
		memcpy(&word, (const uint8_t *)p + at, size - at < 8 ? size - at : 8);
		if (addresses && is_address(word))
			fputs(" address", record);
		else
			fprintf(record, " %llx", (unsigned long long)word);
	}
	fputc('\n', record);
}

void record_words(const char *what, const void *p, size_t size) { write_words(what, p, size, true); }

// record_bytes is record_words for memory without addresses in the byte order of the processor, whose data may look
// like one.
void record_bytes(const char *what, const void *p, size_t size) { write_words(what, p, size, false); }

void record_call(const struct call *c, uint32_t number)
{
	fprintf(record, "command %x, answers of %zu and %zu bytes\n", number, c->out_size, c->driver_out_size);
	record_words("core", c->in, c->in_size);
	record_words("driver", c->driver_in, c->driver_in_size);
}

// record_method writes the attributes of a method, and the values of those methods that have no file descriptors, whose
// numbers differ between programs.
void record_method(const struct ib_uverbs_ioctl_hdr *h)
{
	bool values = h->object_id == UVERBS_OBJECT_DM || h->object_id == UVERBS_OBJECT_COUNTERS ||
		h->object_id == UVERBS_OBJECT_MR && h->method_id == UVERBS_METHOD_DM_MR_REG ||
		h->object_id >> UVERBS_ID_NS_SHIFT;
	fprintf(record, "object %x, method %x:", h->object_id, h->method_id);
	for (int i = 0; i < h->num_attrs; i++) {
		const struct ib_uverbs_attr *a = &h->attrs[i];
		fprintf(record, " %x of %u bytes, flags %x", a->attr_id, a->len, a->flags);
		if (!values)
			fputc(';', record);
		else if (is_address(a->data))
			fputs(", address;", record);
		else
			fprintf(record, ", %llx;", (unsigned long long)a->data);
	}
	fputc('\n', record);
}

// record_qp writes the queues and doorbells of a queue pair that is destroyed.
void record_qp(const struct qp *qp)
{
	fprintf(record, "queue pair %u\n", qp->number);
	driver->record_qp(qp);
}
