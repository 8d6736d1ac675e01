/* A provider that records what it is asked and answers what a test has scripted. headers.h and names.h are written by the Go
 * package beside this directory, from the recorded model of the release that the headers belong to. */
#ifndef GOVERBS_STUB_H
#define GOVERBS_STUB_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "headers.h"
#include "names.h"

/* What an argument is, one letter each: how it is recorded.
 *   v  a value                               p  an address, recorded as it is
 *   s  a list of ibv_send_wr                 r  a list of ibv_recv_wr          o  a list of ibv_ops_wr
 *   b  where the bad work request goes       a  the address of an address
 *   q  a QP with the extended slots: its address, wr_id and wr_flags
 *   c  a string
 *   g  an array of ibv_sge                   d  an array of ibv_data_buf       i  bytes; the count stands in the argument
 *                                               before it for g and d, behind it for i
 * Lists and arrays are recorded with their contents, and their addresses as 1 or 0 (NULL): so equal work gives equal records,
 * wherever it stands in memory. */

/* A number that came in a register. Some conventions say what the bits above its type are, and callees rely on that: there the whole
 * register is recorded. Elsewhere they are anything. */
#if defined(__riscv) || defined(__powerpc64__) || defined(__s390x__) || defined(__loongarch__)
#define STUB_NUMBER(type, a) (a)
#else
#define STUB_NUMBER(type, a) ((uint64_t)(type)(a))
#endif

struct stub_poke { /* what a call writes to where an argument points */
	uint32_t arg, offset;
	uint64_t length, from;
};

enum { STUB_BAD_KEEP = 0, STUB_BAD_NULL = 1, STUB_BAD_AT = 2 /* plus the index */ };

struct stub_result {
	uint64_t value;
	int32_t error;	/* errno; 0 leaves it */
	int32_t bad;	/* one of the above */
	uint64_t pokes;
	struct stub_poke poke[3];
};

enum { STUB_RESULTS = 8 };

struct stub_script { /* results in turn; the last one stays. None: 0, or stub_object */
	uint32_t count;
	uint32_t next;
	struct stub_result results[STUB_RESULTS];
};

struct stub_log { /* the Go side has the same structure */
	uint64_t recording;
	uint64_t capacity;
	uint64_t used;		/* bytes; beyond capacity when records were lost */
	uint64_t calls;
	uint64_t from, to;	/* memory that may be read behind addresses: inline data */
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
extern uint64_t stub_object[512]; /* what calls give that give an address */

/* Records a call, plays the script, and gives the result. */
uint64_t stub_call(uint32_t id, const char *kinds, const uint64_t *args, uint64_t result);

#endif
