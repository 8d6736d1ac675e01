// SPDX-License-Identifier: BSD-2-Clause

#define _GNU_SOURCE
#include "call.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// What a function of the engine returns: as Go's c-shared libraries do.
struct answer {
	uint64_t result;
	int error;
};

// The engine, once it is open. It never closes: a Go library can't.
static struct engine {
	int (*find)(const char *library, const char *name);
	struct answer (*call)(int number, const uint64_t *args, int n);
	uint32_t generation; // 1 for the first; a child of fork has another
} engine;

static _Atomic(struct engine *) opened;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int failed; // to open it; guarded by opening, as is what follows
static int copied; // this is a child of fork: the engine is to be opened as another library

static void before_fork(void)
{
	pthread_mutex_lock(&opening);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&opening);
}

static void in_child(void)
{
	atomic_store(&opened, NULL);
	failed = 0;
	copied = 1;
	pthread_mutex_unlock(&opening);
}

// The directory of this library, as an absolute path: the loader may know a relative one, and the program may change its
// working directory before the engine is opened.
static char directory[PATH_MAX];

__attribute__((constructor)) static void find_directory(void)
{
	Dl_info self;
	const char *slash;
	char name[PATH_MAX];

	if (!dladdr((void *)find_directory, &self) || !self.dli_fname || !(slash = strrchr(self.dli_fname, '/')))
		return;
	int n = snprintf(name, sizeof name, "%.*s/", (int)(slash - self.dli_fname), self.dli_fname);
	if (n < 0 || (size_t)n >= sizeof name || !realpath(name, directory))
		directory[0] = 0;
}

// path gives the engine's file: it lies beside this library.
static int path(char *to, size_t size)
{
	if (!directory[0])
		find_directory(); // a constructor of another library calls, before that of this one has run
	int n = snprintf(to, size, "%s/libgoverbs.so", directory);
	return !directory[0] || n < 0 || (size_t)n >= size ? -1 : 0;
}

// copy gives the name of a copy of the file, in memory, so that it is loaded anew. descriptor is the copy's.
static int copy(char *file, size_t size, int *descriptor)
{
	int from = open(file, O_RDONLY | O_CLOEXEC);
	off_t length = from < 0 ? -1 : lseek(from, 0, SEEK_END), at = 0;

	*descriptor = length < 0 ? -1 : memfd_create("libgoverbs.so", MFD_CLOEXEC);
	while (*descriptor >= 0 && at < length && sendfile(*descriptor, from, &at, length - at) > 0)
		;
	if (from >= 0)
		close(from);
	snprintf(file, size, "/proc/self/fd/%d", *descriptor);
	return length >= 0 && at == length ? 0 : -1;
}

// The program's handlers of signals, while the engine is opened.
struct handlers {
	sigset_t blocked;
	struct sigaction of[_NSIG];
};

// keep notes the program's handlers, and blocks all signals: the engine's own threads are begun with this mask, so that
// no handler of the program runs on one of their small stacks.
static void keep(struct handlers *h)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &h->blocked);
	for (int s = 1; s < _NSIG; s++)
		if (sigaction(s, NULL, &h->of[s]))
			h->of[s].sa_handler = SIG_DFL;
}

// give_back waits for the engine's runtime, and undoes what it does to handlers. It takes SIGURG for stopping its
// threads, which is turned off (dropin/build), and has the program's handlers run on the signal stack that it gives the
// program's threads, which is smaller than their own. It keeps the signals by which it notices faults.
static void give_back(const struct handlers *h, const struct engine *e)
{
	if (e->find)
		e->find("libibverbs", "ibv_get_device_list");
	for (int s = 1; s < _NSIG; s++) {
		struct sigaction now;

		if (!sigaction(s, NULL, &now) &&
		    (s == SIGURG || (now.sa_handler == h->of[s].sa_handler && now.sa_flags != h->of[s].sa_flags)))
			sigaction(s, &h->of[s], NULL);
	}
	pthread_sigmask(SIG_SETMASK, &h->blocked, NULL);
}

static struct engine *open_engine(void)
{
	struct engine *e = atomic_load_explicit(&opened, memory_order_acquire);
	char file[4096] = "";
	int descriptor = -1;

	if (e)
		return e;
	pthread_mutex_lock(&opening);
	e = atomic_load_explicit(&opened, memory_order_acquire);
	if (!e && !failed) {
		static int watched;
		struct handlers handlers;
		void *handle = NULL;

		e = &engine;
		e->find = NULL, e->call = NULL;
		keep(&handlers);
		if (path(file, sizeof file) == 0 && (!copied || copy(file, sizeof file, &descriptor) == 0))
			handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (handle) {
			*(void **)&e->find = dlsym(handle, "goverbs_find");
			*(void **)&e->call = dlsym(handle, "goverbs_call");
		}
		give_back(&handlers, e);
		if (e->find && e->call && (watched || pthread_atfork(before_fork, in_parent, in_child) == 0)) {
			watched = 1;
			e->generation++;
			atomic_store_explicit(&opened, e, memory_order_release);
		} else {
			const char *why = dlerror();

			fprintf(stderr, "goverbs: the software device can't be opened: %s\n", why ? why : file);
			failed = 1;
			e = NULL;
		}
		if (descriptor >= 0)
			close(descriptor);
	}
	pthread_mutex_unlock(&opening);
	return e;
}

static uint64_t fail(const struct goverbs_function *f, int error)
{
	switch (f->fails) {
	case FAILS_NEVER:
		return 0;
	case FAILS_ERRNO:
		return error;
	case FAILS_NEGATIVE:
		return -(int64_t)error;
	case FAILS_NULL:
		errno = error;
		return 0;
	default:
		errno = error;
		return -1;
	}
}

static void missing(const char *name)
{
	fprintf(stderr, "goverbs: %s is called, which the software device does not have\n", name);
}

// Numbers are looked up once for each engine; unknown functions have this one.
#define UNKNOWN UINT32_MAX

// number_of gives the number of a function in the engine, or UNKNOWN.
static uint32_t number_of(struct engine *e, struct goverbs_function *f)
{
	uint64_t number = atomic_load_explicit(&f->number, memory_order_acquire);

	if (number >> 32 != e->generation) {
		int found = e->find(f->library, f->name);

		number = (uint64_t)e->generation << 32 | (found < 0 ? UNKNOWN : (uint32_t)found);
		if (found < 0)
			missing(f->name);
		atomic_store_explicit(&f->number, number, memory_order_release);
	}
	return (uint32_t)number;
}

// How a thread waits, as the engine says it with this error: it polls, or reads from a file if there is nothing to poll.
#define ASLEEP INT32_MAX

struct nap {
	uint64_t id;
	struct pollfd *fds;
	int32_t number, timeout, file;
};

// take sleeps here and not in the engine: a handler of a signal may call the engine meanwhile, or jump out of it. It
// calls the kernel itself, because the program may have put functions of its own before those of the C library.
static int take(const struct nap *n)
{
	struct timespec left = {n->timeout / 1000, n->timeout % 1000 * 1000000};
	uint64_t token;
	long done = n->fds ? syscall(SYS_ppoll, n->fds, (long)n->number, n->timeout < 0 ? NULL : &left, NULL, 0L)
			   : syscall(SYS_read, (long)n->file, &token, sizeof token);

	return done < 0 ? errno : 0;
}

uint64_t goverbs_enter(struct goverbs_function *f, const uint64_t *args, int n)
{
	static struct goverbs_function awake = {"librdmacm", "goverbs_awake", FAILS_MINUS_ONE, 0};
	struct engine *e = open_engine();
	struct answer a;
	uint32_t number;

	if (!e)
		return fail(f, ENODEV);
	number = number_of(e, f);
	if (number == UNKNOWN)
		return fail(f, EOPNOTSUPP);
	a = e->call(number, args, n);
	while (a.error == ASLEEP) {
		const struct nap *nap = (const struct nap *)(uintptr_t)a.result;
		uint64_t slept[] = {nap->id, take(nap)};

		a = e->call(number_of(e, &awake), slept, 2);
	}
	if (a.error)
		errno = a.error;
	return a.result;
}

long goverbs_refuse(atomic_flag *told, const char *name)
{
	if (!atomic_flag_test_and_set(told))
		missing(name);
	errno = EOPNOTSUPP;
	return -1;
}
