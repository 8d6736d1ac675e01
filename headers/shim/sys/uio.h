/* Our own minimal <sys/uio.h>. */
#ifndef GOVERBS_SHIM_SYS_UIO_H
#define GOVERBS_SHIM_SYS_UIO_H

#include <stddef.h>

struct iovec {
	void *iov_base;
	size_t iov_len;
};

#endif
