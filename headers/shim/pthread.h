/*
 * Our own minimal <pthread.h>. Only size and alignment matter here: a mutex takes 48 bytes on arm64 with glibc and 40 on
 * every other 64-bit Linux. The C witness compares them with the real header.
 */
#ifndef GOVERBS_SHIM_PTHREAD_H
#define GOVERBS_SHIM_PTHREAD_H

#include <sys/types.h>
#include <time.h>

#ifdef __aarch64__
#define GOVERBS_MUTEX_BYTES 48
#else
#define GOVERBS_MUTEX_BYTES 40
#endif

typedef union {
	char bytes[GOVERBS_MUTEX_BYTES];
	long align;
} pthread_mutex_t;

typedef union {
	char bytes[48];
	long long align;
} pthread_cond_t;

int pthread_mutex_init(pthread_mutex_t *mutex, const void *attr);
int pthread_cond_init(pthread_cond_t *cond, const void *attr);

#endif
