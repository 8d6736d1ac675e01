// SPDX-License-Identifier: BSD-2-Clause

/* A library to preload that makes one allocation fail; build with gcc -shared -fPIC. The file named by GOVERBS_FAULTS
 * holds two numbers, which the program changes: the number of allocations up to the one that fails, and whether to
 * count allocations of librpma itself rather than of libibverbs, its providers and librdmacm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);

static volatile int32_t *faults; /* left, own */

__attribute__((constructor)) static void begin(void)
{
	const char *name = getenv("GOVERBS_FAULTS");
	int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
	void *at;

	if (fd < 0)
		return;
	at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at != MAP_FAILED)
		faults = at;
}

static int fails(void *caller)
{
	Dl_info of;
	int own;

	if (!faults || faults[0] <= 0 || !dladdr(caller, &of) || !of.dli_fname)
		return 0;
	own = strstr(of.dli_fname, "librpma") != NULL;
	if (!own && !strstr(of.dli_fname, "libibverbs") && !strstr(of.dli_fname, "librdmacm"))
		return 0;
	if (own != faults[1] || --faults[0])
		return 0;
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}
