// SPDX-License-Identifier: BSD-2-Clause

// The adapter's own time: a thread beside the program's, as an adapter runs beside its processor. Nothing but a
// doorbell tells it of work.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "emulated.h"

static struct kernel own = {.mutex = PTHREAD_MUTEX_INITIALIZER};
struct kernel *kernel = &own;

// share takes the place that testdata/twins.c has for the kernel of both programs, of zeros to begin with.
static __attribute__((constructor)) void share(void)
{
	const char *at = getenv("GOVERBS_EMULATED_KERNEL");
	if (at)
		kernel = (struct kernel *)strtoull(at, NULL, 16);
}

void drop(void *p)
{
	if (kernel == &own)
		free(p);
}

void device_lock(void) { pthread_mutex_lock(&kernel->mutex); }
void device_unlock(void) { pthread_mutex_unlock(&kernel->mutex); }

static bool waiting, ending;
static pid_t runs; // the process whose thread runs the device; 0 before, and when it has ended

// end waits for the end of the device's thread before the program ends: it would be killed with the lock in its hands,
// which the other program waits for.
static __attribute__((destructor)) void end(void)
{
	device_lock();
	ending = true;
	device_unlock();
	while (__atomic_load_n(&runs, __ATOMIC_ACQUIRE) == getpid()) // and not in a child, which has no such thread
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void is_waiting(void *o)
{
	struct qp *qp = o;
	waiting |= qp->deadline || qp->waiting || qp->rendezvous || qp->attr.qp_state == IBV_QPS_ERR;
}

// hurry has the device's thread run before those of programs that poll, as an adapter does: beside busy processors
// it would wait for some milliseconds for each doorbell. Where that is not permitted it is slower, and as right.
static void hurry(void)
{
	prctl(PR_SET_TIMERSLACK, 1000ul);
	if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 1}))
		setpriority(PRIO_PROCESS, gettid(), -15);
}

// device looks for doorbells, often while there is work and seldom when there is none.
static void *device(void *unused)
{
	(void)unused;
	hurry();
	for (unsigned idle = 0; !ending; idle++) {
		device_lock();
		waiting = false;
		bool rung = !ending && driver->rung();
		each(QP, is_waiting);
		if (!ending && (rung || waiting))
			run_queues();
		device_unlock();
		if (rung)
			idle = 0;
		nanosleep(&(struct timespec){.tv_nsec = idle < 2000 ? 20000 : 500000}, NULL);
	}
	__atomic_store_n(&runs, 0, __ATOMIC_RELEASE);
	return NULL;
}

// still says that the adapter does nothing: requests stay in their queues and doorbells where they were rung, for tests
// that look at them, and write completions themselves, or because nothing here knows the adapter's queues.
bool still(void) { return !driver->next_send || getenv("GOVERBS_EMULATED_STILL"); }

// catch_up does what doorbells have asked for: an adapter would have done it before the program's next command came.
void catch_up(void)
{
	if (!still() && driver->rung())
		run_queues();
}

void start_device(void)
{
	static bool started;
	device_lock();
	bool start = !started && !still();
	started = true;
	device_unlock();
	if (!start)
		return;
	sigset_t all, old;
	pthread_t thread;
	pthread_attr_t attributes;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old); // signals are for the program's threads
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	runs = getpid();
	if (pthread_create(&thread, &attributes, device, NULL))
		abort();
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
