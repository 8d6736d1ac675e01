/* Our own minimal <time.h>. */
#ifndef GOVERBS_SHIM_TIME_H
#define GOVERBS_SHIM_TIME_H

typedef long time_t;

struct timespec {
	time_t tv_sec;
	long tv_nsec;
};

#endif
