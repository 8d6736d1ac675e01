/* A provider that records its calls and returns scripted results. The Go package in the parent directory generates headers.h and names.h
 * from the recorded model of the headers' release. */
#ifndef GOVERBS_STUB_H
#define GOVERBS_STUB_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "headers.h"
#include "names.h"

/* How arguments are recorded, one letter each.
 *   v  a value                               p  an address, recorded unchanged
 *   s  a list of ibv_send_wr                 r  a list of ibv_recv_wr          o  a list of ibv_ops_wr
 *   b  the address for bad_wr                a  the address of an address
 *   q  a QP with the extended slots: its address, wr_id and wr_flags
 *   c  a string
 *   g  an array of ibv_sge                   d  an array of ibv_data_buf       i  bytes; the count is in the argument
 *                                               before it for g and d, after it for i
 * Lists and arrays are recorded with their contents, and their addresses as 1 or 0 (NULL), so that records do not depend on addresses. */

/* A number in a register. If the calling convention defines the bits above its type, callees rely on them, and the complete register is
 * recorded. Otherwise they are undefined. */
#if defined(__riscv) || defined(__powerpc64__) || defined(__s390x__) || defined(__loongarch__)
#define STUB_NUMBER(type, a) (a)
#else
#define STUB_NUMBER(type, a) ((uint64_t)(type)(a))
#endif

struct stub_poke { /* a write to memory that an argument points to */
	uint32_t arg, offset;
	uint64_t length, from;
};

enum { STUB_BAD_KEEP = 0, STUB_BAD_NULL = 1, STUB_BAD_AT = 2 /* plus the index */ };

struct stub_result {
	uint64_t value;
	int32_t error;	/* errno, unless 0 */
	int32_t bad;	/* one of the above */
	uint64_t pokes;
	struct stub_poke poke[3];
};

enum { STUB_RESULTS = 8 };

struct stub_script { /* results in order; the last one repeats. Default: 0, or stub_object */
	uint32_t count;
	uint32_t next;
	struct stub_result results[STUB_RESULTS];
};

struct stub_log { /* the Go side has the same structure */
	uint64_t recording;
	uint64_t capacity;
	uint64_t used;		/* bytes; exceeds capacity if records were lost */
	uint64_t calls;
	uint64_t from, to;	/* readable memory: inline data */
	uint64_t records;	/* address */
};

struct stub_record { /* followed by the arguments and the contents, padded to 8 bytes */
	uint32_t size;
	uint32_t id;
	uint32_t args;
	uint32_t bytes;
};

extern struct stub_log stub_log;
extern struct stub_script stub_scripts[STUB_IDS];
extern uint64_t stub_object[512]; /* result of calls that return an address */

/* Records a call, executes the script, and returns the result. */
uint64_t stub_call(uint32_t id, const char *kinds, const uint64_t *args, uint64_t result);

#endif
