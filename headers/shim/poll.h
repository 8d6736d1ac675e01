/* Our own minimal <poll.h>. */
#ifndef GOVERBS_SHIM_POLL_H
#define GOVERBS_SHIM_POLL_H

typedef unsigned long nfds_t;

struct pollfd {
	int fd;
	short events;
	short revents;
};

#endif
