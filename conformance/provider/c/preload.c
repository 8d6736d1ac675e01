// SPDX-License-Identifier: BSD-2-Clause

// Intercepts the device files of libibverbs and librdmacm: /dev/infiniband/uverbs0 is a sparse memory file that
// pretends to be a character device, and so is rdma_cm. Everything else goes to the kernel.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "emulated.h"

// The headers define stat64 and others as aliases or macros; both names are interposed here.
#undef stat64
#undef fstat64
#undef open64

static const char device_path[] = "/dev/infiniband/uverbs0";
static const char cm_path[] = "/dev/infiniband/rdma_cm";
static const off_t device_size = 1l << 40;

static bool is(const char *path, const char *name) { return path && strcmp(path, name) == 0; }
static bool is_device(const char *path) { return is(path, device_path); }

static struct file *file_of(int fd)
{
	struct file *f = kernel->files;
	while (f && f->fd != fd)
		f = f->next;
	return f;
}

static int open_device(int flags)
{
	int fd = memfd_create("uverbs0", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
	if (fd < 0)
		return -1;
	struct file *f = calloc(1, sizeof *f);
	if (!f || ftruncate(fd, device_size)) {
		free(f);
		syscall(SYS_close, fd);
		errno = ENOMEM;
		return -1;
	}
	f->fd = fd;
	f->async = (struct events){-1, -1, -1};
	device_lock();
	f->next = kernel->files;
	kernel->files = f;
	device_unlock();
	start_device();
	return fd;
}

static void pretend(struct stat *st)
{
	st->st_mode = S_IFCHR | 0666;
	st->st_rdev = makedev(DEVICE_NUMBER >> 8, DEVICE_NUMBER & 0xff);
}

int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
		va_list more;
		va_start(more, flags);
		mode = va_arg(more, mode_t);
		va_end(more);
	}
	if (is_device(path) || is(path, cm_path))
		system_call("open", 0);
	if (is_device(path))
		return open_device(flags);
	if (is(path, cm_path))
		return open_cm(flags);
	return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open64(const char *, int, ...) __attribute__((alias("open")));

int stat(const char *path, struct stat *st)
{
	if (is_device(path)) {
		memset(st, 0, sizeof *st);
		pretend(st);
		return 0;
	}
	return syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}
int stat64(const char *, struct stat64 *) __attribute__((alias("stat")));

int fstat(int fd, struct stat *st)
{
	int r = syscall(SYS_fstat, fd, st);
	device_lock();
	if (r == 0 && (file_of(fd) || is_cm(fd)))
		pretend(st);
	device_unlock();
	return r;
}
int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));

int ioctl(int fd, unsigned long request, ...)
{
	va_list more;
	va_start(more, request);
	void *argument = va_arg(more, void *);
	va_end(more);
	if (request != RDMA_VERBS_IOCTL)
		return syscall(SYS_ioctl, fd, request, argument);
	device_lock();
	struct file *f = file_of(fd);
	int err = f ? uverbs_ioctl(f, argument) : ENOTTY;
	if (err != EPROTONOSUPPORT) // libibverbs tries the methods of newer kernels first
		system_call("ioctl", 0);
	device_unlock();
	if (err) {
		errno = err;
		return -1;
	}
	return 0;
}

int close(int fd)
{
	device_lock();
	if (file_of(fd) || is_cm(fd))
		system_call("close", 0);
	for (struct file **at = &kernel->files; *at; at = &(*at)->next) {
		struct file *f = *at;
		if (f->fd != fd)
			continue;
		free_objects(f);
		close_events(&f->async);
		*at = f->next;
		free(f);
		break;
	}
	close_channel(fd);
	close_netlink(fd);
	close_cm(fd);
	device_unlock();
	return syscall(SYS_close, fd);
}

// libibverbs loads RDMAV_DRIVERS and also drivers configured on this machine, which may be of another release: it is
// shown an empty directory.
DIR *opendir(const char *path)
{
	char none[4096];
	const char *sysfs = getenv("SYSFS_PATH");
	if (sysfs && strcmp(path, "/etc/libibverbs.d") == 0) {
		snprintf(none, sizeof none, "%s/drivers", sysfs);
		path = none;
	}
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? NULL : fdopendir(fd);
}

void *map_device(struct file *f, uint64_t offset, size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, offset);
	return p == MAP_FAILED ? NULL : p;
}

// make_mapping maps zeroed memory, shared by the program and the device, at an unused offset of the device file.
bool make_mapping(struct file *f, struct mapping *m, size_t size)
{
	static uint64_t next = 1 << 30; // after mappings by handle
	size = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
	*m = (struct mapping){.offset = next, .size = size, .at = map_device(f, next, size)};
	next += size;
	return m->at;
}

void drop_mapping(struct mapping *m)
{
	if (!m->at)
		return;
	madvise(m->at, m->size, MADV_REMOVE); // free the file's pages
	munmap(m->at, m->size);
	m->at = NULL;
}
