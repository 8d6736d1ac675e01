/* Our own minimal <infiniband/types.h> of FreeBSD, which has the types of <linux/types.h>. */
#ifndef GOVERBS_SHIM_FREEBSD_INFINIBAND_TYPES_H
#define GOVERBS_SHIM_FREEBSD_INFINIBAND_TYPES_H

#include <stdint.h>

typedef uint8_t u8;
typedef uint8_t __u8;
typedef uint16_t u16;
typedef uint16_t __u16;
typedef uint32_t u32;
typedef uint32_t __u32;
typedef uint64_t u64;
typedef uint64_t __u64;

typedef uint16_t __be16;
typedef uint32_t __be32;
typedef uint64_t __be64;

#endif
