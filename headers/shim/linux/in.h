/* Our own minimal <linux/in.h>. The C witness compares it with the real one. */
#ifndef GOVERBS_SHIM_LINUX_IN_H
#define GOVERBS_SHIM_LINUX_IN_H

#include <linux/types.h>

struct in_addr {
	__be32 s_addr;
};

struct sockaddr_in {
	unsigned short sin_family;
	__be16 sin_port;
	struct in_addr sin_addr;
	unsigned char __pad[8];
};

#endif
