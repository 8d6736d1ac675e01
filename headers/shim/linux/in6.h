/* Our own minimal <linux/in6.h>. The C witness compares it with the real one. */
#ifndef GOVERBS_SHIM_LINUX_IN6_H
#define GOVERBS_SHIM_LINUX_IN6_H

#include <linux/types.h>

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be16 u6_addr16[8];
		__be32 u6_addr32[4];
	} in6_u;
};

struct sockaddr_in6 {
	unsigned short sin6_family;
	__be16 sin6_port;
	__be32 sin6_flowinfo;
	struct in6_addr sin6_addr;
	__u32 sin6_scope_id;
};

#endif
