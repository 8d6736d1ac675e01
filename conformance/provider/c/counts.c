// SPDX-License-Identifier: BSD-2-Clause

// Resource counts of the program, which a kernel reports by netlink: here in the file GOVERBS_EMULATED_COUNTS, one line
// for each kind of object. Also its system calls on device files.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emulated.h"

enum { KINDS = CM_ID + 1 };

static const char *const names[KINDS] = {
	[PD] = "pd", [MR] = "mr", [CQ] = "cq", [QP] = "qp", [SRQ] = "srq", [CONTEXT] = "ctx", [CM_ID] = "cm_id",
};

static unsigned held[KINDS];
static int file = -1;

static void print_count(enum kind kind)
{
	char line[32];
	int n = snprintf(line, sizeof line, "%-8s%8u\n", names[kind] ? names[kind] : "-", held[kind]);
	if (pwrite(file, line, n, (off_t)kind * n) != n)
		abort();
}

static __attribute__((constructor)) void begin(void)
{
	const char *path = getenv("GOVERBS_EMULATED_COUNTS");
	file = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644) : -1;
	for (int kind = 0; kind < KINDS && file >= 0; kind++)
		print_count(kind);
}

// system_call appends a system call on a device file to the file GOVERBS_EMULATED_CALLS: its name and the command.
void system_call(const char *name, unsigned command)
{
	static FILE *calls;
	const char *path = calls ? NULL : getenv("GOVERBS_EMULATED_CALLS");
	if (path && (calls = fopen(path, "we")))
		setvbuf(calls, NULL, _IOLBF, 1 << 12);
	if (calls)
		fprintf(calls, "%s %u\n", name, command);
}

// hold counts objects: more is 1 or -1.
void hold(enum kind kind, int more)
{
	held[kind] += more;
	if (file >= 0)
		print_count(kind);
}
