// SPDX-License-Identifier: BSD-2-Clause

// Functions of libibverbs that are not declared in the headers that the generator reads. generated/dropin/libibverbs.c
// includes this file because the versions of a symbol must be in the file of its function.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

int written_ibv_dontfork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

int written_ibv_dofork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

const char *written_ibv_get_sysfs_path(void)
{
	return "/sys";
}

// ibv_read_sysfs_file reads the first line of a file and returns its length.
int written_ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[4096];
	int fd, n = snprintf(path, sizeof path, "%s/%s", dir, file);

	if (n < 0 || (size_t)n >= sizeof path || size == 0)
		return -1;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, buf, size);
	close(fd);
	if (n > 0 && (buf[n - 1] == '\n' || (size_t)n == size))
		n--;
	if (n >= 0)
		buf[n] = 0;
	return n;
}

// The result of _ibv_query_gid_ex.
struct gid_entry {
	unsigned char gid[16];
	uint32_t index, port, type, interface;
};

// ibv_query_gid_type returns 1 for RoCE v2, and 0 for InfiniBand and RoCE v1.
int written_ibv_query_gid_type(void *context, uint8_t port, unsigned int index, int *type)
{
	struct gid_entry entry;
	int error = _ibv_query_gid_ex(context, port, index, &entry, 0, sizeof entry);

	if (error) {
		errno = error;
		return -1;
	}
	*type = entry.type == 2;
	return 0;
}

// A program may load providers for other reasons. Their registration and log calls have no effect here.

void written___verbs_log(void *context, uint32_t level, const char *format, ...)
{
	(void)context, (void)level, (void)format;
}

void written_verbs_register_driver_33(const void *ops)
{
	(void)ops;
}

void written_verbs_register_driver_34(const void *ops)
{
	(void)ops;
}

void written_verbs_register_driver_65(const void *ops)
{
	(void)ops;
}
