/* A header of our own with every C shape that the witness asserts something about. */
#ifndef GOVERBS_PROBE_H
#define GOVERBS_PROBE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define probe_alias probe_plain
#define PROBE_ALIAS PROBE_HIGH
#define PROBE_POINTER ((void *)-1)
#define PROBE_WIDE (1ULL << 34)
#define PROBE_MINUS (-1)
#define probe_call(handle) probe_call_inline(handle)
#define probe_other_name probe_call_inline

enum probe_sign { PROBE_UNKNOWN = -1, PROBE_KNOWN = 1, PROBE_AGAIN = 1 };
enum probe_flags { PROBE_LOW = 1 << 0, PROBE_HIGH = 0x80000000 };
enum { PROBE_NAME_MAX = 64 };

struct probe_handle;

struct probe_plain {
	uint64_t id;
	const char *name;
	char text[PROBE_NAME_MAX];
	enum probe_sign sign;
};

struct probe_nested {
	struct probe_nested *next;
	union {
		uint32_t imm_data;
		uint16_t key;
	};
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			struct probe_plain *plain;
		} plain;
	} wr;
	struct {
		uint8_t a;
		uint32_t b;
	} pair[2];
	struct timespec at;
	pthread_mutex_t lock;
};

union probe_gid {
	uint8_t raw[16];
	struct {
		uint64_t prefix, interface;
	} global;
};

struct probe_packed {
	uint8_t first;
	uint16_t second;
} __attribute__((packed));

struct probe_flexible {
	uint32_t count;
	uint32_t items[];
};

struct probe_bits {
	uint8_t first;
	uint32_t low : 3;
	int32_t across : 7;
	struct {
		uint16_t inner : 12;
	} in[2];
};

struct probe_ops {
	int (*start)(struct probe_handle *handle, const struct probe_plain *plain);
	void *(*reserved[2])(void);
	void (*walk)(int (*each)(void *context), ...);
};

const char *probe_name(enum probe_flags flags);
int(probe_call)(struct probe_handle *handle);
int probe_print(const char *format, ...);

static inline int probe_call_inline(struct probe_handle *handle)
{
	return handle != NULL;
}

#endif
