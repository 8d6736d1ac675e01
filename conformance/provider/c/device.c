// SPDX-License-Identifier: BSD-2-Clause

// The device thread, which runs concurrently with the program's threads, like an adapter. Only doorbells notify it of
// work.
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

// share maps the kernel state at the address that testdata/twins.c reserves for both programs, initially zero.
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
static pid_t runs; // process of the device thread; 0 before it starts and after it has ended

// end waits for the device thread before the process exits: otherwise it could be killed while it holds the lock, for
// which the other program would wait.
static __attribute__((destructor)) void end(void)
{
	device_lock();
	ending = true;
	device_unlock();
	while (__atomic_load_n(&runs, __ATOMIC_ACQUIRE) == getpid()) // a child has no such thread
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void is_waiting(void *o)
{
	struct qp *qp = o;
	waiting |= qp->deadline || qp->waiting || qp->rendezvous || qp->attr.qp_state == IBV_QPS_ERR;
}

// hurry raises the priority of the device thread above polling threads: on busy processors it would otherwise wait for
// milliseconds at each doorbell. Without permission it is only slower.
static void hurry(void)
{
	prctl(PR_SET_TIMERSLACK, 1000ul);
	if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 1}))
		setpriority(PRIO_PROCESS, gettid(), -15);
}

// device polls doorbells, frequently while there is work.
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

// still reports whether the adapter is passive: requests and doorbells remain, for tests that inspect them and write
// completions themselves, or because the driver does not implement the queues.
bool still(void) { return !driver->next_send || getenv("GOVERBS_EMULATED_STILL"); }

// catch_up processes rung doorbells: a real adapter would have done so before the next command.
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
	pthread_sigmask(SIG_SETMASK, &all, &old); // leave signals to the program's threads
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	runs = getpid();
	if (pthread_create(&thread, &attributes, device, NULL))
		abort();
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
