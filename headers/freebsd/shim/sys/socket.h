/* Our own minimal <sys/socket.h> of FreeBSD, whose addresses begin with their length. */
#ifndef GOVERBS_SHIM_FREEBSD_SYS_SOCKET_H
#define GOVERBS_SHIM_FREEBSD_SYS_SOCKET_H

#include <sys/types.h>

typedef uint32_t socklen_t;
typedef uint8_t sa_family_t;

struct sockaddr {
	unsigned char sa_len;
	sa_family_t sa_family;
	char sa_data[14];
};

struct sockaddr_storage {
	unsigned char ss_len;
	sa_family_t ss_family;
	char __ss_pad1[6];
	int64_t __ss_align;
	char __ss_pad2[112];
};

#endif
