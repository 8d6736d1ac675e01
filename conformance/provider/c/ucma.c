// SPDX-License-Identifier: BSD-2-Clause

// The connection manager's device file: IDs, events, and dispatch of commands.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ucma.h"

static struct cm_file *file_of(int fd)
{
	struct cm_file *f = kernel->cm_files;
	while (f && f->fd != fd)
		f = f->next;
	return f;
}

bool is_cm(int fd) { return file_of(fd); }

int open_cm(int flags)
{
	struct cm_file *f = calloc(1, sizeof *f);
	if (!f || (f->fd = eventfd(0, flags & O_CLOEXEC ? EFD_CLOEXEC : 0)) < 0) {
		free(f);
		return -1;
	}
	int fd = f->fd;
	device_lock();
	f->next = kernel->cm_files, kernel->cm_files = f;
	device_unlock();
	return fd;
}

// IDs

struct cm_id *new_cm_id(struct cm_file *f)
{
	for (uint32_t i = 0; i < MOST_IDS; i++) {
		if (kernel->cm_ids[i])
			continue;
		struct cm_id *id = kernel->cm_ids[i] = calloc(1, sizeof *id);
		if (!id)
			return NULL;
		*id = (struct cm_id){.number = i, .file = f, .gid = -1, 
			.psn = recording() ? i : random() & 0xffffff};
		hold(CM_ID, 1);
		return id;
	}
	return NULL;
}

struct cm_id *find_cm_id(struct cm_call *c, uint32_t number)
{
	struct cm_id *id = number < MOST_IDS ? kernel->cm_ids[number] : NULL;
	return id && id->file == c->file ? id : NULL;
}

struct cm_id *next_cm_id(uint32_t *at)
{
	while (*at < MOST_IDS)
		if (kernel->cm_ids[(*at)++])
			return kernel->cm_ids[*at - 1];
	return NULL;
}

// Events

static void put(struct cm_file *f, struct cm_event *e)
{
	struct cm_event **last = &f->events;
	while (*last)
		last = &(*last)->next;
	*last = e;
	if (last == &f->events) {
		uint64_t one = 1;
		syscall(SYS_write, f->fd, &one, sizeof one);
	}
}

// take_event removes an event from its file's list. An empty file is no longer readable.
static struct cm_event *take_event(struct cm_file *f, struct cm_event **at)
{
	struct cm_event *e = *at;
	*at = e->next, e->next = NULL;
	if (!f->events) {
		uint64_t count;
		syscall(SYS_read, f->fd, &count, sizeof count);
	}
	return e;
}

static void queue(struct cm_id *to, struct cm_id *of, struct cm_id *child, uint32_t event, int32_t status,
	const struct cm_message *m)
{
	struct cm_event *e = to->uid ? calloc(1, sizeof *e) : NULL;
	if (!e)
		return;
	e->id = to, e->child = child;
	e->r.uid = to->uid, e->r.id = of->number, e->r.event = event, e->r.status = status;
	if (m)
		e->r.param.conn = m->param, e->r.ece = m->ece;
	put(to->file, e);
}

void queue_event(struct cm_id *to, uint32_t event, int32_t status, const struct cm_message *m)
{
	queue(to, to, NULL, event, status, m);
}

void tell_request(struct cm_id *listener, struct cm_id *child)
{
	queue(listener, child, child, CONNECT_REQUEST, 0, &child->heard);
}

uint32_t unread_requests(struct cm_id *listener)
{
	uint32_t n = 0;
	for (struct cm_event *e = listener->file->events; e; e = e->next)
		n += e->id == listener && e->child;
	return n;
}

// forget_cm_id destroys an ID, its unread events, and the IDs of unread requests.
void forget_cm_id(struct cm_id *id)
{
	end_connection(id);
	for (struct cm_event **at = &id->file->events; *at;) {
		struct cm_event *e = *at;
		if (e->id != id && e->child != id) {
			at = &e->next;
			continue;
		}
		take_event(id->file, at);
		if (e->child && e->child != id) {
			forget_cm_id(e->child);
			at = &id->file->events; // the removed event may have been the next one
		}
		drop(e);
	}
	kernel->cm_ids[id->number] = NULL;
	hold(CM_ID, -1);
	drop(id);
}

void close_cm(int fd)
{
	for (struct cm_file **at = &kernel->cm_files; *at; at = &(*at)->next) {
		struct cm_file *f = *at;
		if (f->fd != fd)
			continue;
		for (uint32_t i = 0; i < MOST_IDS; i++)
			if (kernel->cm_ids[i] && kernel->cm_ids[i]->file == f)
				forget_cm_id(kernel->cm_ids[i]);
		*at = f->next;
		free(f);
		return;
	}
}

// Commands

int cm_answer(uint64_t response, size_t room, const void *from, size_t size)
{
	memcpy((void *)(uintptr_t)response, from, size < room ? size : room);
	return 0;
}

static int create_id(struct cm_call *c)
{
	struct rdma_ucm_create_id q;
	TAKE_CM(c, q);
	if (q.ps != RDMA_PS_TCP && q.ps != RDMA_PS_IB)
		return refuse("port space", q.ps);
	struct cm_id *id = new_cm_id(c->file);
	if (!id)
		return ENOMEM;
	id->uid = q.uid, id->space = q.ps, id->type = q.qp_type;
	struct rdma_ucm_create_id_resp r = {.id = id->number};
	return cm_answer(q.response, c->out_size, &r, sizeof r);
}

static int destroy_id(struct cm_call *c)
{
	struct rdma_ucm_destroy_id q;
	TAKE_CM(c, q);
	struct cm_id *id = find_cm_id(c, q.id);
	if (!id)
		return ENOENT;
	struct rdma_ucm_destroy_id_resp r = {.events_reported = id->reported};
	forget_cm_id(id);
	return cm_answer(q.response, c->out_size, &r, sizeof r);
}

static int migrate_id(struct cm_call *c)
{
	struct rdma_ucm_migrate_id q;
	TAKE_CM(c, q);
	struct cm_call from = {.file = file_of(q.fd)};
	struct cm_id *id = from.file ? find_cm_id(&from, q.id) : NULL;
	if (!id)
		return ENOENT;
	for (struct cm_event **at = &from.file->events; *at && from.file != c->file;)
		if ((*at)->id == id)
			put(c->file, take_event(from.file, at));
		else
			at = &(*at)->next;
	id->file = c->file;
	struct rdma_ucm_migrate_resp r = {.events_reported = id->reported};
	return cm_answer(q.response, c->out_size, &r, sizeof r);
}

// wait_event holds the lock, except while it waits.
static int wait_event(struct cm_file *f)
{
	struct pollfd ready = {.fd = f->fd, .events = POLLIN};
	while (!f->events) {
		if (fcntl(ready.fd, F_GETFL) & O_NONBLOCK)
			return EAGAIN;
		device_unlock();
		int n = poll(&ready, 1, -1);
		device_lock();
		if (n < 0 || file_of(ready.fd) != f) // interrupted by a signal, or the file was closed
			return n < 0 ? EINTR : EBADF;
	}
	return 0;
}

static int get_event(struct cm_call *c)
{
	struct rdma_ucm_get_event q;
	TAKE_CM(c, q);
	int err = wait_event(c->file);
	if (err)
		return err;
	struct cm_event *e = take_event(c->file, &c->file->events);
	e->id->reported++;
	if (e->child && e->child->file != c->file)
		e->child->file = c->file; // the listener has moved since
	cm_answer(q.response, c->out_size, &e->r, sizeof e->r);
	drop(e);
	return 0;
}

static int run(struct cm_file *f, const uint8_t *text, size_t size)
{
	static int (*const commands[])(struct cm_call *) = {
		[RDMA_USER_CM_CMD_CREATE_ID] = create_id,
		[RDMA_USER_CM_CMD_DESTROY_ID] = destroy_id,
		[RDMA_USER_CM_CMD_RESOLVE_ROUTE] = cm_resolve_route,
		[RDMA_USER_CM_CMD_CONNECT] = cm_connect,
		[RDMA_USER_CM_CMD_LISTEN] = cm_listen,
		[RDMA_USER_CM_CMD_ACCEPT] = cm_accept,
		[RDMA_USER_CM_CMD_REJECT] = cm_reject,
		[RDMA_USER_CM_CMD_DISCONNECT] = cm_disconnect,
		[RDMA_USER_CM_CMD_INIT_QP_ATTR] = cm_init_qp_attr,
		[RDMA_USER_CM_CMD_GET_EVENT] = get_event,
		[RDMA_USER_CM_CMD_SET_OPTION] = cm_set_option,
		[RDMA_USER_CM_CMD_NOTIFY] = cm_notify,
		[RDMA_USER_CM_CMD_MIGRATE_ID] = migrate_id,
		[RDMA_USER_CM_CMD_QUERY] = cm_query,
		[RDMA_USER_CM_CMD_BIND] = cm_bind,
		[RDMA_USER_CM_CMD_RESOLVE_ADDR] = cm_resolve_addr,
	};
	struct rdma_ucm_cmd_hdr h;
	if (size < sizeof h)
		return EINVAL;
	memcpy(&h, text, sizeof h);
	if (h.in + sizeof h > size)
		return EINVAL;
	if (h.cmd >= sizeof commands / sizeof *commands || !commands[h.cmd])
		return refuse("command of the connection manager", h.cmd);
	struct cm_call c = {.file = f, .in = text + sizeof h, .in_size = h.in, .out_size = h.out};
	return commands[h.cmd](&c);
}

ssize_t write(int fd, const void *text, size_t size)
{
	device_lock();
	struct cm_file *f = file_of(fd);
	if (f)
		system_call("write", *(const uint32_t *)text);
	int err = f ? run(f, text, size) : 0;
	device_unlock();
	if (!f)
		return syscall(SYS_write, fd, text, size);
	if (!err)
		return size;
	errno = err;
	return -1;
}
