// SPDX-License-Identifier: BSD-2-Clause

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "../../generated/dropin/slots.h"

#define ROCE_PORT 4791
#define MAX_FILES (1 << 20) // Linux's default for fs.nr_open

// Go does not run in a child of fork, so the child cannot use objects that it inherited.
static volatile int inherited;

// Slots whose functions return a pointer.
static uint64_t pointers[sizeof pointer_slots / sizeof pointer_slots[0]];

// leave_group closes a child's copies of the sockets by which processes share an address. They would occupy
// the parent's address after its end: UDP sockets with the port of RoCE v2, and Unix sockets with names of package udp.
static void leave_group(int fd)
{
	static const char prefix[] = "\0goverbs-udp/";
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_un un;
	} at;
	socklen_t length = sizeof at;

	memset(&at, 0, sizeof at);
	if (getsockname(fd, &at.any, &length))
		return;
	if ((at.any.sa_family == AF_INET && at.v4.sin_port == htons(ROCE_PORT)) ||
	    (at.any.sa_family == AF_INET6 && at.v6.sin6_port == htons(ROCE_PORT)) ||
	    (at.any.sa_family == AF_UNIX && !memcmp(at.un.sun_path, prefix, sizeof prefix - 1)))
		close(fd);
}

// goverbs_forked is called in a child of fork.
void goverbs_forked(void)
{
	DIR *all = opendir("/proc/self/fd");

	inherited = 1;
	if (!all) { // /proc is not mounted, or too many files are open
		struct rlimit files = {MAX_FILES, MAX_FILES};

		getrlimit(RLIMIT_NOFILE, &files);
		for (rlim_t fd = 0; fd < files.rlim_max && fd < MAX_FILES; fd++)
			leave_group(fd);
		return;
	}
	for (struct dirent *one; (one = readdir(all));)
		leave_group(atoi(one->d_name));
	closedir(all);
}

// goverbs_note_slots notes which functions of a context return a pointer.
void goverbs_note_slots(uintptr_t context)
{
	for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++)
		pointers[i] = *(uint64_t *)(context - CONTEXT_AT + pointer_slots[i]);
}

static uint64_t reject_inherited(uintptr_t fn)
{
	static atomic_flag reported = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&reported))
		fprintf(stderr, "goverbs: the child of a fork uses an object of its parent; open the device again in the "
				"child\n");
	errno = ENODEV;
	for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++)
		if (fn == pointers[i])
			return 0;
	return -1;
}

// goverbs_entered calls the function of a slot with the argument registers.
__attribute__((visibility("hidden"))) uint64_t goverbs_entered(uintptr_t fn, uint64_t *args)
{
	struct goverbs_slot_return answer;

	if (inherited)
		return reject_inherited(fn);
	answer = goverbs_slot(fn, args);
	if (answer.r1)
		errno = answer.r1;
	return answer.r0;
}

// goverbs_entry is where the code in slots jumps to, with the slot's address in r10 or x16: it keeps the registers that
// pass arguments in memory, and calls goverbs_entered with the address of that memory.
#if defined(__x86_64__)
__asm__(
	".text\n"
	".globl goverbs_entry\n"
	".hidden goverbs_entry\n"
	".type goverbs_entry, @function\n"
	"goverbs_entry:\n"
	"	.cfi_startproc\n"
	"	subq $56, %rsp\n"
	"	.cfi_adjust_cfa_offset 56\n"
	"	movq %rdi, 0(%rsp)\n"
	"	movq %rsi, 8(%rsp)\n"
	"	movq %rdx, 16(%rsp)\n"
	"	movq %rcx, 24(%rsp)\n"
	"	movq %r8, 32(%rsp)\n"
	"	movq %r9, 40(%rsp)\n"
	"	movq %r10, %rdi\n"
	"	movq %rsp, %rsi\n"
	"	call goverbs_entered\n"
	"	addq $56, %rsp\n"
	"	.cfi_adjust_cfa_offset -56\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size goverbs_entry, .-goverbs_entry\n");
#elif defined(__aarch64__)
__asm__(
	".text\n"
	".globl goverbs_entry\n"
	".hidden goverbs_entry\n"
	".type goverbs_entry, %function\n"
	"goverbs_entry:\n"
	"	.cfi_startproc\n"
	"	stp x29, x30, [sp, #-64]!\n"
	"	.cfi_def_cfa_offset 64\n"
	"	.cfi_offset 29, -64\n"
	"	.cfi_offset 30, -56\n"
	"	mov x29, sp\n"
	"	stp x0, x1, [sp, #16]\n"
	"	stp x2, x3, [sp, #32]\n"
	"	stp x4, x5, [sp, #48]\n"
	"	mov x0, x16\n"
	"	add x1, sp, #16\n"
	"	bl goverbs_entered\n"
	"	ldp x29, x30, [sp], #64\n"
	"	.cfi_restore 29\n"
	"	.cfi_restore 30\n"
	"	.cfi_def_cfa_offset 0\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size goverbs_entry, .-goverbs_entry\n");
#else
#error "the drop-in libraries are for amd64 and arm64"
#endif
