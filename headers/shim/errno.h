/* Our own minimal <errno.h>: names only, so that inline functions keep the names of the errnos that they use. */
#ifndef GOVERBS_SHIM_ERRNO_H
#define GOVERBS_SHIM_ERRNO_H

enum {
	EPERM = 1,
	ENOENT = 2,
	ENOMEM = 12,
	EINVAL = 22,
	ENOSYS = 38,
	EOPNOTSUPP = 95
};

extern int errno;

#endif
