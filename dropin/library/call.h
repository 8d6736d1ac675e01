/* SPDX-License-Identifier: BSD-2-Clause */

/* Functions called by the generated functions of libibverbs.so.1 and librdmacm.so.1. */

#pragma once

#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>

/* The return value of a function that fails. */
enum goverbs_fails {
	FAILS_NEVER,     /* none, or 0: the function cannot fail */
	FAILS_ERRNO,     /* the error number */
	FAILS_MINUS_ONE, /* -1 and errno */
	FAILS_NEGATIVE,  /* the negative error number */
	FAILS_NULL,      /* NULL and errno */
};

struct goverbs_function {
	const char *library, *name;
	enum goverbs_fails fails;
	_Atomic uint64_t number; /* of the engine that is open, and the function's in it; 0 before it is looked up */
};

/* goverbs_enter calls a function of the engine, and opens it if necessary. It sets errno where the function does. */
uint64_t goverbs_enter(struct goverbs_function *f, const uint64_t *args, int n);

/* goverbs_refuse reports once that a function is missing, and returns -1 with errno EOPNOTSUPP. */
long goverbs_refuse(atomic_flag *reported, const char *name);

/* Defines a function that is not implemented. */
#define REFUSED(function, name) \
	long function(void) \
	{ \
		static atomic_flag reported = ATOMIC_FLAG_INIT; \
		return goverbs_refuse(&reported, name); \
	}

/* Gives a symbol another version: "@V" for programs linked with old libraries, "@@V" for new ones. */
#define SYMBOL_VERSION(of, name, version) __asm__(".symver " #of ", " #name version)
