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
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <time.h>
#include <unistd.h>

// The result of an engine function, laid out as in Go's c-shared libraries.
struct answer {
	uint64_t result;
	int error;
};

// The engine, once it is open. It is never closed: Go libraries cannot be unloaded.
static struct engine {
	int (*find)(const char *library, const char *name);
	struct answer (*call)(int number, const uint64_t *args, int n);
	void (*forked)(void);
	uint32_t generation; // incremented in a child of fork
} engine = {.generation = 1};

static _Atomic(struct engine *) opened;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int failed; // the error number of opening it, or 0; guarded by opening, like the variables below
static int loaded; // this process or a parent has loaded the engine's file: the next engine is loaded from a copy
static int watched; // whether fork calls the functions below

// The state of a thread before it opened the engine or forked. Until then, signals are blocked, because a handler that
// calls the engine would wait for its own thread, and cancellation is disabled, because it would leave the mutex
// locked.
struct thread {
	sigset_t blocked;
	int cancelled;
};

static void block_signals(struct thread *t)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &t->blocked);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &t->cancelled);
}

static void restore(const struct thread *t)
{
	pthread_setcancelstate(t->cancelled, NULL);
	pthread_sigmask(SIG_SETMASK, &t->blocked, NULL);
}

static struct thread forking; // guarded by opening

// before_fork waits until no other thread opens the engine: the child could not continue that.
static void before_fork(void)
{
	struct thread now;

	block_signals(&now);
	pthread_mutex_lock(&opening);
	forking = now;
}

static void after_fork(void)
{
	struct thread before = forking;

	pthread_mutex_unlock(&opening);
	restore(&before);
}

static void in_child(void)
{
	atomic_store(&opened, NULL);
	if (engine.forked)
		engine.forked();
	engine.forked = NULL;
	engine.generation++;
	failed = 0;
	after_fork();
}

// The handlers are installed before any thread can open the engine.
__attribute__((constructor)) static void watch_fork(void)
{
	watched = pthread_atfork(before_fork, after_fork, in_child) == 0;
}

// The directory of this library, as an absolute path: the loader may have a relative one, and the program may change
// its working directory before the engine is opened.
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

// path returns the engine's file, which is in the directory of this library.
static int path(char *to, size_t size)
{
	if (!directory[0])
		find_directory(); // called by the constructor of another library, which runs before this one's
	int n = snprintf(to, size, "%s/libgoverbs.so", directory);
	return !directory[0] || n < 0 || (size_t)n >= size ? -1 : 0;
}

// exceeds_limit reports whether a file of this size exceeds the limit of the process. Writing it would cause SIGXFSZ.
static int exceeds_limit(off_t size)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < (rlim_t)size;
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *pass(void *none)
{
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	return none;
}

// Resources needed for opening the engine. Go aborts a process that lacks one of them, so they are tried here first.
enum {
	DESCRIPTORS = 16,
	THREADS = 8,
	CODE = 1 << 16, // bytes of the file with generated code
};
static const size_t addresses = 1792UL << 20, data = 128UL << 20;

static int try_descriptors(void)
{
	int fds[DESCRIPTORS], n, error = 0;

	for (n = 0; n < DESCRIPTORS; n++)
		if ((fds[n] = eventfd(0, EFD_CLOEXEC)) < 0) {
			error = errno;
			break;
		}
	while (n > 0)
		close(fds[--n]);
	return error;
}

static int try_threads(void)
{
	pthread_t threads[THREADS];
	int n, error = 0;

	pthread_mutex_lock(&gate);
	for (n = 0; n < THREADS && !error; n++)
		error = pthread_create(&threads[n], NULL, pass, NULL);
	if (error)
		n--;
	pthread_mutex_unlock(&gate);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	return error;
}

static int mappable(size_t size, int protection)
{
	void *range = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return range != MAP_FAILED && munmap(range, size) == 0;
}

// try_memory tries to map the memory, including thread stacks.
static int try_memory(void)
{
	pthread_attr_t attr;
	size_t stack = 8 << 20, guard = 0;

	if (!pthread_getattr_default_np(&attr)) {
		pthread_attr_getstacksize(&attr, &stack);
		pthread_attr_getguardsize(&attr, &guard);
		pthread_attr_destroy(&attr);
	}
	const size_t stacks = THREADS * (stack + guard);

	if (mappable(addresses + stacks, PROT_NONE) && mappable(data + stacks, PROT_READ | PROT_WRITE))
		return 0;
	return ENOMEM;
}

// check_resources returns 0, or an error number and a hint if the process lacks a resource that the engine needs.
static int check_resources(const char **hint)
{
	int error;

	*hint = "raise the limit of open files (ulimit -n), or close files";
	if ((error = try_descriptors()))
		return error;
	*hint = "raise the limit of a file's size (ulimit -f)";
	if (exceeds_limit(CODE))
		return EFBIG;
	*hint = "raise the limit of virtual memory or of data (ulimit -v, -d)";
	if ((error = try_memory()))
		return error;
	*hint = "raise the limit of processes (ulimit -u)";
	return try_threads();
}

// copy copies a file to memory, so that the loader loads it again, and replaces its name with that of the copy. It
// returns 0 or an error number.
static int copy(char *file, size_t size, int *descriptor)
{
	int from = open(file, O_RDONLY | O_CLOEXEC), error = 0;
	off_t length = from < 0 ? -1 : lseek(from, 0, SEEK_END), at = 0;

	if (length < 0 || (*descriptor = memfd_create("libgoverbs.so", MFD_CLOEXEC)) < 0)
		error = errno;
	else if (exceeds_limit(length))
		error = EFBIG;
	while (!error && at < length) {
		ssize_t n = sendfile(*descriptor, from, &at, length - at);

		if (n <= 0)
			error = n < 0 ? errno : EIO;
	}
	if (from >= 0)
		close(from);
	snprintf(file, size, "/proc/self/fd/%d", *descriptor);
	return error;
}

// The program's signal handlers and limit of open files, saved while the engine is opened.
struct handlers {
	struct sigaction of[_NSIG];
	struct rlimit files;
};

static void save(struct handlers *h)
{
	getrlimit(RLIMIT_NOFILE, &h->files);
	for (int s = 1; s < _NSIG; s++)
		if (sigaction(s, NULL, &h->of[s]))
			h->of[s].sa_handler = SIG_DFL;
}

// undo undoes changes by the Go runtime. It raises the limit of open files, which the program's children would inherit.
// It preempts goroutines with SIGURG, which dropin/build turns off. It makes the program's handlers run on the signal
// stacks that it sets for the program's threads and that are smaller than their own. Go's handlers for faults stay.
static void undo(const struct handlers *h)
{
	setrlimit(RLIMIT_NOFILE, &h->files);
	for (int s = 1; s < _NSIG; s++) {
		struct sigaction now;

		if (!sigaction(s, NULL, &now) &&
		    (s == SIGURG || (now.sa_handler == h->of[s].sa_handler && now.sa_flags != h->of[s].sa_flags)))
			sigaction(s, &h->of[s], NULL);
	}
}

// Functions of the C library that are cancellation points. The program may have replaced them.
static ssize_t (*libc_read)(int, void *, size_t);
static int (*libc_ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);

static int find_libc(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);

	if (!libc)
		return -1;
	*(void **)&libc_read = dlsym(libc, "read");
	*(void **)&libc_ppoll = dlsym(libc, "ppoll");
	return libc_read && libc_ppoll ? 0 : -1;
}

// load loads the engine's file. It returns 0, or an error number and the reason.
static int load(struct engine *e, const char **why)
{
	char file[4096] = "";
	int descriptor = -1, error = ENODEV;
	void *handle = NULL;

	*why = "cannot find the C library or the directory of libibverbs.so.1";
	if (find_libc() == 0 && path(file, sizeof file) == 0) {
		*why = "cannot copy libgoverbs.so for a child of fork";
		error = loaded ? copy(file, sizeof file, &descriptor) : 0;
	}
	if (!error && !(handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)))
		*why = dlerror();
	if (handle) {
		loaded = 1;
		*(void **)&e->find = dlsym(handle, "goverbs_find");
		*(void **)&e->call = dlsym(handle, "goverbs_call");
		*(void **)&e->forked = dlsym(handle, "goverbs_forked");
		*why = "libgoverbs.so lacks the engine's functions";
	}
	if (descriptor >= 0)
		close(descriptor);
	if (error)
		return error;
	return handle && e->find && e->call && e->forked && watched ? 0 : ENODEV;
}

// open_engine returns the engine, or NULL and an error number. A resource that the process lacks may be
// available later.
static struct engine *open_engine(int *error)
{
	struct engine *e = atomic_load_explicit(&opened, memory_order_acquire);
	struct thread thread;

	if (e)
		return e;
	block_signals(&thread); // the engine's threads inherit the mask, so the program's handlers do not run on them
	pthread_mutex_lock(&opening);
	e = atomic_load_explicit(&opened, memory_order_acquire);
	*error = failed;
	if (!e && !failed) {
		static atomic_flag reported = ATOMIC_FLAG_INIT;
		const char *why;

		*error = check_resources(&why);
		if (!*error) {
			struct handlers handlers;

			save(&handlers);
			*error = load(&engine, &why);
			if (!*error) {
				int number = engine.find("libibverbs", "ibv_get_device_list"); // waits for the engine's runtime

				failed = number < 0 ? -number : 0; // the engine has printed the reason
			}
			undo(&handlers);
		}
		if (*error) {
			if (!atomic_flag_test_and_set(&reported))
				fprintf(stderr, "goverbs: cannot open the software device: %s; %s\n", strerror(*error), why);
		} else if (failed) {
			*error = failed;
		} else {
			atomic_store_explicit(&opened, e = &engine, memory_order_release);
		}
	}
	pthread_mutex_unlock(&opening);
	restore(&thread);
	return e;
}

static uint64_t fail(const struct goverbs_function *f, int error)
{
	switch (f->fails) {
	case FAILS_NEVER:
		return 0;
	case FAILS_ERRNO:
		errno = error;
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
	fprintf(stderr, "goverbs: %s is not supported by the software device\n", name);
}

// Numbers are looked up once for each engine; unknown functions have the number UNKNOWN.
#define UNKNOWN UINT32_MAX

// number_of returns the number of a function in the engine, or UNKNOWN.
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

// Set in the numbers of functions that may wait and are therefore cancellation points.
#define MAY_WAIT (1u << 30)

// If the engine returns error ASLEEP, the thread waits: it polls, or reads from a file if there is nothing to poll. It
// then calls the engine's function awake with the error of the wait, or with CANCELLED.
#define ASLEEP INT32_MAX
#define CANCELLED UINT64_MAX

struct nap {
	uint64_t id;
	struct pollfd *fds;
	int32_t number, timeout, file;
};

// sleep_outside sleeps outside the engine: a signal handler may call the engine meanwhile or exit by longjmp, and
// pthread_cancel may end the thread.
static int sleep_outside(const struct nap *n)
{
	struct timespec left = {n->timeout / 1000, n->timeout % 1000 * 1000000};
	uint64_t token;
	ssize_t done = n->fds ? libc_ppoll(n->fds, n->number, n->timeout < 0 ? NULL : &left, NULL)
			      : libc_read(n->file, &token, sizeof token);

	return done < 0 ? errno : 0;
}

static struct goverbs_function awake = {"goverbs", "awake", FAILS_MINUS_ONE, 0};

// A nap in progress.
struct sleeping {
	struct engine *e;
	uint64_t id;
};

static void cancelled(void *nap)
{
	struct sleeping *n = nap;

	n->e->call(number_of(n->e, &awake), (uint64_t[]){n->id, CANCELLED}, 2);
}

// wake sleeps and then continues the call. state is the thread's cancelability.
static struct answer wake(struct engine *e, const struct nap *nap, int state)
{
	const uint32_t generation = e->generation;
	struct sleeping sleeping = {e, nap->id};
	int error;

	pthread_cleanup_push(cancelled, &sleeping);
	pthread_setcancelstate(state, NULL);
	error = sleep_outside(nap);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	if (e->generation != generation) // a handler forked, and this is the child
		return (struct answer){-1, ENODEV};
	return e->call(number_of(e, &awake), (uint64_t[]){sleeping.id, error}, 2);
}

uint64_t goverbs_enter(struct goverbs_function *f, const uint64_t *args, int n)
{
	int error = ENODEV, state;
	struct engine *e = open_engine(&error);
	struct answer a;
	uint32_t number;

	if (!e)
		return fail(f, error);
	// The engine may call C functions that are cancellation points, but Go's frames cannot be unwound.
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	number = number_of(e, f);
	if (number == UNKNOWN) {
		pthread_setcancelstate(state, NULL);
		return fail(f, EOPNOTSUPP);
	}
	if (number & MAY_WAIT) { // a cancellation point even if there is nothing to wait for
		pthread_setcancelstate(state, NULL);
		pthread_testcancel();
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	}
	a = e->call(number & ~MAY_WAIT, args, n);
	while (a.error == ASLEEP)
		a = wake(e, (const struct nap *)(uintptr_t)a.result, state);
	pthread_setcancelstate(state, NULL);
	if (a.error)
		errno = a.error;
	else if (f->fails == FAILS_ERRNO && a.result > 0 && a.result < 4096)
		errno = (int)a.result; // as after a system call that failed
	return a.result;
}

long goverbs_refuse(atomic_flag *reported, const char *name)
{
	if (!atomic_flag_test_and_set(reported))
		missing(name);
	errno = EOPNOTSUPP;
	return -1;
}
