// SPDX-License-Identifier: BSD-2-Clause
// The memory that pyverbs' tests of dma-bufs ask a GPU for. That of a memfd stands for it: it can be mapped by the
// descriptor, which is all that the tests and the software device do with one.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct dmabuf {
	int file;
};

struct dmabuf *dmabuf_alloc(uint64_t size, int gpu, int gtt)
{
	struct dmabuf *d = malloc(sizeof *d);

	(void)gpu, (void)gtt;
	if (!d)
		return NULL;
	d->file = memfd_create("dmabuf", MFD_CLOEXEC);
	if (d->file < 0 || ftruncate(d->file, size)) {
		if (d->file >= 0)
			close(d->file);
		free(d);
		return NULL;
	}
	return d;
}

void dmabuf_free(struct dmabuf *d)
{
	close(d->file);
	free(d);
}

int dmabuf_get_fd(struct dmabuf *d)
{
	return d->file;
}

// dmabuf_get_drm_fd is the descriptor that the program maps the memory by, from dmabuf_get_offset on.
int dmabuf_get_drm_fd(struct dmabuf *d)
{
	return d->file;
}

uint64_t dmabuf_get_offset(struct dmabuf *d)
{
	(void)d;
	return 0;
}
