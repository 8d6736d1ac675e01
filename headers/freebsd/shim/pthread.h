/* Our own minimal <pthread.h> of FreeBSD, where a mutex and a condition variable are pointers. */
#ifndef GOVERBS_SHIM_FREEBSD_PTHREAD_H
#define GOVERBS_SHIM_FREEBSD_PTHREAD_H

#include <sys/types.h>
#include <time.h>

struct pthread_mutex;
struct pthread_cond;

typedef struct pthread_mutex *pthread_mutex_t;
typedef struct pthread_cond *pthread_cond_t;

int pthread_mutex_init(pthread_mutex_t *mutex, const void *attr);
int pthread_cond_init(pthread_cond_t *cond, const void *attr);

#endif
