/* Our own minimal <sys/types.h>. */
#ifndef GOVERBS_SHIM_SYS_TYPES_H
#define GOVERBS_SHIM_SYS_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef long ssize_t;
typedef long off_t;

#endif
