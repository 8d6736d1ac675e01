/* Our own minimal <sys/select.h>. */
#ifndef GOVERBS_SHIM_SYS_SELECT_H
#define GOVERBS_SHIM_SYS_SELECT_H

#include <time.h>

struct timeval {
	time_t tv_sec;
	long tv_usec;
};

typedef struct {
	long bits[16];
} fd_set;

#endif
