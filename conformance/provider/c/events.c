// SPDX-License-Identifier: BSD-2-Clause

// Events that programs read from a descriptor.
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "emulated.h"

bool open_events(struct events *e)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return false;
	*e = (struct events){.ours = pair[0], .theirs = pair[1], .unread = fcntl(pair[1], F_DUPFD_CLOEXEC, 0)};
	return true;
}

void close_events(struct events *e)
{
	if (e->ours >= 0)
		syscall(SYS_close, e->ours);
	if (e->unread >= 0)
		syscall(SYS_close, e->unread);
	e->ours = e->unread = -1;
}

bool send_event(struct events *e, const void *event, size_t size)
{
	return send(e->ours, event, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

// drop_unread removes events of one object that the program has not read, and returns their number. Both kinds of event
// begin with the object.
uint32_t drop_unread(struct events *e, size_t size, uint64_t element)
{
	uint32_t dropped = 0, kept = 0;
	uint8_t keep[256][32], event[32];
	while (kept < 256 && recv(e->unread, event, size, MSG_DONTWAIT) == (ssize_t)size) {
		if (memcmp(event, &element, sizeof element) == 0)
			dropped++;
		else
			memcpy(keep[kept++], event, size);
	}
	for (uint32_t i = 0; i < kept; i++)
		send_event(e, keep[i], size);
	return dropped;
}

void async_event(struct file *f, uint32_t type, uint64_t element, uint32_t *sent)
{
	struct ib_uverbs_async_event_desc event = {.element = element, .event_type = type};
	if (f->context && send_event(&f->async, &event, sizeof event) && sent)
		(*sent)++;
}
