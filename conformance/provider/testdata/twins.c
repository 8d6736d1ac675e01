// SPDX-License-Identifier: BSD-2-Clause

// Runs two unmodified programs, a server and its client, in one address space, so that the emulated adapter reaches the
// memory of both. Each is a separate process with its own C library; they share memory and descriptors (CLONE_VM and
// CLONE_FILES). Programs are loaded like the kernel does it; the first word is the C library's loader.
//
//	twins PORT SERVER... -- CLIENT...
//
// The client starts when a server listens at the port, or after a second, because ports of the connection manager are
// not visible. The exit status is 0 if both exit with 0; if one fails, the other is killed.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 8 << 20, SMALL = 64 << 10, KERNEL = 64 << 20, LIMIT = 300 };

static void *memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		abort();
	return p;
}

static const uint64_t *auxiliary; // auxiliary vector of this program

// A loaded file and its header.
struct image {
	uint8_t *base;
	Elf64_Ehdr head;
};

static uint64_t down(uint64_t n) { return n & ~(uint64_t)(PAGE - 1); }

static int protection(uint32_t flags)
{
	return (flags & PF_R ? PROT_READ : 0) | (flags & PF_W ? PROT_WRITE : 0) | (flags & PF_X ? PROT_EXEC : 0);
}

static void load(struct image *i, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	Elf64_Phdr table[16];
	if (fd < 0 || pread(fd, &i->head, sizeof i->head, 0) != sizeof i->head || i->head.e_phnum > 16 ||
		pread(fd, table, sizeof *table * i->head.e_phnum, i->head.e_phoff) < 0) {
		perror(path);
		exit(2);
	}
	uint64_t size = 0;
	for (int n = 0; n < i->head.e_phnum; n++)
		if (table[n].p_type == PT_LOAD)
			size = table[n].p_vaddr + table[n].p_memsz;
	i->base = memory(size);
	for (int n = 0; n < i->head.e_phnum; n++) {
		const Elf64_Phdr *p = &table[n];
		if (p->p_type != PT_LOAD)
			continue;
		uint8_t *at = i->base + down(p->p_vaddr), *end = i->base + p->p_vaddr + p->p_filesz;
		if (mmap(at, end - at, protection(p->p_flags), MAP_PRIVATE | MAP_FIXED, fd, down(p->p_offset)) == MAP_FAILED)
			abort();
		if (p->p_flags & PF_W) // clear the rest of the last page
			memset(end, 0, down((uint64_t)end + PAGE - 1) - (uint64_t)end);
	}
	close(fd);
}

static uint64_t replaced(uint64_t type, uint64_t value, const struct image *i, const char *path)
{
	switch (type) {
	case AT_PHDR: return (uint64_t)i->base + i->head.e_phoff;
	case AT_PHNUM: return i->head.e_phnum;
	case AT_PHENT: return i->head.e_phentsize;
	case AT_ENTRY: return (uint64_t)i->base + i->head.e_entry;
	case AT_BASE: return 0;
	case AT_EXECFN: return (uint64_t)path;
	}
	return value;
}

// begin builds the initial stack of a program and jumps to its entry.
static int begin(void *of)
{
	char **argv = of, **env = environ;
	struct image i;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	load(&i, argv[0]);
	const uint64_t *given = auxiliary;
	uint64_t *stack = (uint64_t *)((uint8_t *)memory(STACK) + STACK) - 4096, *at = stack;
	uint64_t *count = at++;
	for (*count = 0; argv[*count]; (*count)++)
		*at++ = (uint64_t)argv[*count];
	*at++ = 0;
	while (*env)
		*at++ = (uint64_t)*env++;
	*at++ = 0;
	for (; *given; given += 2) {
		*at++ = given[0];
		*at++ = replaced(given[0], given[1], &i, argv[0]);
	}
	*at++ = AT_NULL, *at = 0;
	__asm__ volatile("mov %0, %%rsp\n\txor %%edx, %%edx\n\tjmp *%1"
		: : "r"(stack), "r"(i.base + i.head.e_entry) : "memory", "rdx");
	return 127;
}

static pid_t start(char **argv)
{
	pid_t pid = clone(begin, (uint8_t *)memory(SMALL) + SMALL, CLONE_VM | CLONE_FILES | SIGCHLD, argv);
	if (pid < 0) {
		perror("clone");
		exit(2);
	}
	return pid;
}

// listens reports whether a server listens at a port.
static bool listens(unsigned port)
{
	const char *const files[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	bool found = false;
	for (int i = 0; i < 2 && !found; i++) {
		char line[512], address[80];
		FILE *f = fopen(files[i], "re");
		unsigned p, state;
		while (f && fgets(line, sizeof line, f))
			found |= sscanf(line, " %*d: %79[^:]:%x %*[^:]:%*x %x", address, &p, &state) == 3 && p == port && state == 10;
		if (f)
			fclose(f);
	}
	return found;
}

int main(int argc, char **argv)
{
	char **client = argv + 2, **env = argv + argc + 1;
	while (*env++)
		;
	auxiliary = (const uint64_t *)env;
	while (*client && strcmp(*client, "--"))
		client++;
	if (!*client || !client[1]) {
		fprintf(stderr, "twins PORT SERVER... -- CLIENT...\n");
		return 2;
	}
	*client++ = NULL;
	alarm(LIMIT); // ends this program and its children
	char kernel[32];
	snprintf(kernel, sizeof kernel, "%p", memory(KERNEL));
	setenv("GOVERBS_EMULATED_KERNEL", kernel, 1);
	// Both C libraries would move the same program break: block it, so that they use mmap.
	if (mmap((void *)down((uint64_t)sbrk(0) + PAGE - 1), PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		MAP_FAILED)
		abort();
	pid_t pids[2] = {start(argv + 2), 0};
	int status = 0, running = 1;
	for (int i = 0; i < 100 && !listens(atoi(argv[1])) && waitpid(pids[0], &status, WNOHANG) == 0; i++)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	if (status)
		return 1;
	pids[1] = start(client);
	for (running = 2; running; running--) {
		int ended;
		pid_t pid = wait(&ended);
		status |= ended;
		if (ended && running == 2)
			kill(pids[pid == pids[0]], SIGKILL);
	}
	return status ? 1 : 0;
}
