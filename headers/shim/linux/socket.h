/* Our own minimal <linux/socket.h>. The C witness compares it with the real one. */
#ifndef GOVERBS_SHIM_LINUX_SOCKET_H
#define GOVERBS_SHIM_LINUX_SOCKET_H

struct __kernel_sockaddr_storage {
	union {
		struct {
			unsigned short ss_family;
			char __data[126];
		};
		void *__align;
	};
};

#endif
