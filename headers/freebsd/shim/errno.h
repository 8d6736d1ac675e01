/* Our own minimal <errno.h> of FreeBSD: the errnos that inline functions use. */
#ifndef GOVERBS_SHIM_FREEBSD_ERRNO_H
#define GOVERBS_SHIM_FREEBSD_ERRNO_H

enum {
	ENOMEM = 12,
	EINVAL = 22,
	EOPNOTSUPP = 45,
	ENOSYS = 78
};

extern int errno;

#endif
