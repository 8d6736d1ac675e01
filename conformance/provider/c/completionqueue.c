// SPDX-License-Identifier: BSD-2-Clause

// Commands of completion channels and queues.
#include <string.h>

#include "emulated.h"

static int create_comp_channel(struct call *c)
{
	struct channel *ch = new_object(c->file, CHANNEL, sizeof *ch);
	if (!ch || !open_events(&ch->events))
		return ENOMEM;
	struct ib_uverbs_create_comp_channel_resp r = {.fd = ch->events.theirs};
	return answer(c, &r, sizeof r);
}

static int wanted_descriptor;
static struct channel *found_channel;

static void match_channel(void *o)
{
	struct channel *ch = o;
	if (ch->events.theirs == wanted_descriptor)
		found_channel = ch;
}

static struct channel *channel_of(int fd)
{
	wanted_descriptor = fd;
	found_channel = NULL;
	each(CHANNEL, match_channel);
	return found_channel;
}

void close_channel(int fd)
{
	struct channel *ch = channel_of(fd);
	if (ch) {
		close_events(&ch->events);
		free_object(&ch->o);
	}
}

static int new_cq(struct call *c, uint64_t user, uint32_t entries, uint32_t vector, int channel, struct cq **made)
{
	if (!entries || entries > (uint32_t)driver->device->max_cqe || vector >= VECTORS)
		return EINVAL;
	struct channel *ch = channel >= 0 ? channel_of(channel) : NULL;
	if (channel >= 0 && !ch)
		return EBADF;
	struct cq *cq = *made = new_object(c->file, CQ, sizeof *cq);
	if (!cq)
		return ENOMEM;
	cq->user = user, cq->entries = entries, cq->channel = ch;
	int err = driver->create_cq(c, cq);
	if (err)
		free_object(&cq->o);
	else if (cq->channel)
		cq->channel->o.users++;
	return err;
}

static int create_cq(struct call *c)
{
	struct ib_uverbs_create_cq q;
	struct cq *cq;
	TAKE(c, q);
	int err = new_cq(c, q.user_handle, q.cqe, q.comp_vector, q.comp_channel, &cq);
	if (err)
		return err;
	struct ib_uverbs_create_cq_resp r = {.cq_handle = cq->o.handle, .cqe = cq->entries};
	return answer(c, &r, sizeof r);
}

static int create_cq_ex(struct call *c)
{
	struct ib_uverbs_ex_create_cq q;
	struct cq *cq;
	TAKE(c, q);
	if (q.flags & ~IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION)
		return refuse("flags of a completion queue", q.flags);
	int err = new_cq(c, q.user_handle, q.cqe, q.comp_vector, q.comp_channel, &cq);
	if (err)
		return err;
	struct ib_uverbs_ex_create_cq_resp r = {.base = {.cq_handle = cq->o.handle, .cqe = cq->entries}};
	r.response_length = sizeof r;
	return answer(c, &r, sizeof r);
}

static int resize_cq(struct call *c)
{
	struct ib_uverbs_resize_cq q;
	TAKE(c, q);
	struct cq *cq = find_object(c->file, CQ, q.cq_handle);
	if (!cq || !q.cqe || q.cqe > MOST_ENTRIES)
		return EINVAL;
	catch_up();
	int err = driver->resize_cq(c, cq, q.cqe);
	if (err)
		return err;
	struct ib_uverbs_resize_cq_resp r = {.cqe = cq->entries};
	return answer(c, &r, sizeof r);
}

// libibverbs waits until the program has acknowledged the number of events reported here, which must be those that it
// read.
static int destroy_cq(struct call *c)
{
	struct ib_uverbs_destroy_cq q;
	TAKE(c, q);
	struct cq *cq = find_object(c->file, CQ, q.cq_handle);
	if (!cq)
		return ENOENT;
	if (cq->o.users)
		return EBUSY;
	struct ib_uverbs_destroy_cq_resp r = {
		.comp_events_reported = cq->comp_sent, .async_events_reported = cq->async_sent,
	};
	if (cq->channel) {
		r.comp_events_reported -=
			drop_unread(&cq->channel->events, sizeof(struct ib_uverbs_comp_event_desc), cq->user);
		cq->channel->o.users--;
	}
	r.async_events_reported -= drop_unread(&c->file->async, sizeof(struct ib_uverbs_async_event_desc), cq->user);
	answer(c, &r, sizeof r);
	return destroy_object(&cq->o);
}

const struct command completion_commands[] = {
	{IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, create_comp_channel},
	{IB_USER_VERBS_CMD_CREATE_CQ, create_cq},
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_CREATE_CQ, create_cq_ex},
	{IB_USER_VERBS_CMD_RESIZE_CQ, resize_cq},
	{IB_USER_VERBS_CMD_DESTROY_CQ, destroy_cq},
	{0, NULL},
};
