// SPDX-License-Identifier: BSD-2-Clause

// libgoverbs-files.so, which goverbs-run preloads. Some programs look for a device's node and for its files in /sys
// before they call verbs. For them, /dev/infiniband and /sys/class/infiniband are directories next to this library.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[PATH_MAX]; // "" if unknown

__attribute__((constructor)) static void find_files(void)
{
	Dl_info self;
	const char *slash;
	char name[PATH_MAX];

	if (!dladdr((void *)find_files, &self) || !self.dli_fname || !(slash = strrchr(self.dli_fname, '/')))
		return;
	int n = snprintf(name, sizeof name, "%.*s/files", (int)(slash - self.dli_fname), self.dli_fname);
	// The program may change its working directory.
	if (n < 0 || (size_t)n >= sizeof name || !realpath(name, directory))
		directory[0] = 0;
}

// redirect returns the name of the file to use: the given name, or one that it writes to buffer.
static const char *redirect(const char *name, char buffer[PATH_MAX])
{
	static const char *const places[] = {"/dev/infiniband", "/sys/class/infiniband"};

	for (size_t i = 0; name && directory[0] && i < sizeof places / sizeof places[0]; i++) {
		size_t n = strlen(places[i]);

		if (strncmp(name, places[i], n) == 0 && (name[n] == '/' || name[n] == 0) &&
		    snprintf(buffer, PATH_MAX, "%s%s", directory, name) < PATH_MAX)
			return buffer;
	}
	return name;
}

// Defines a function of the C library that takes a file name. Programs may call it before constructors have run.
#define WRAP(result, function, parameters, ...) \
	result function parameters \
	{ \
		char buffer[PATH_MAX]; \
		__typeof__(function) *next; \
\
		*(void **)&next = dlsym(RTLD_NEXT, #function); \
		return next(__VA_ARGS__); \
	}
#define REDIRECTED redirect(name, buffer)

WRAP(int, stat, (const char *name, struct stat *to), REDIRECTED, to)
WRAP(int, stat64, (const char *name, struct stat64 *to), REDIRECTED, to)
WRAP(int, lstat, (const char *name, struct stat *to), REDIRECTED, to)
WRAP(int, lstat64, (const char *name, struct stat64 *to), REDIRECTED, to)
WRAP(int, access, (const char *name, int mode), REDIRECTED, mode)
WRAP(FILE *, fopen, (const char *name, const char *mode), REDIRECTED, mode)
WRAP(FILE *, fopen64, (const char *name, const char *mode), REDIRECTED, mode)
WRAP(DIR *, opendir, (const char *name), REDIRECTED)

// open has the argument mode only if it may create a file.
#define WRAP_OPEN(function) \
	int function(const char *name, int flags, ...) \
	{ \
		char buffer[PATH_MAX]; \
		__typeof__(function) *next; \
		mode_t mode = 0; \
		va_list more; \
\
		if (flags & (O_CREAT | __O_TMPFILE)) { \
			va_start(more, flags); \
			mode = va_arg(more, mode_t); \
			va_end(more); \
		} \
		*(void **)&next = dlsym(RTLD_NEXT, #function); \
		return next(REDIRECTED, flags, mode); \
	}

WRAP_OPEN(open)
WRAP_OPEN(open64)
