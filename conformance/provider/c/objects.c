// SPDX-License-Identifier: BSD-2-Clause

// Objects of programs except queue pairs, and their commands.
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

void *new_object(struct file *f, enum kind kind, size_t size)
{
	struct object *o = calloc(1, size);
	for (uint32_t h = 1; o && h < OBJECTS; h++)
		if (!kernel->objects[h]) {
			*o = (struct object){.kind = kind, .handle = h, .file = f};
			if (h > kernel->highest)
				kernel->highest = h;
			hold(kind, 1);
			return kernel->objects[h] = o;
		}
	free(o);
	return NULL;
}

void *find_object(struct file *f, enum kind kind, uint32_t handle)
{
	struct object *o = handle < OBJECTS ? kernel->objects[handle] : NULL;
	return o && o->kind == kind && o->file == f ? o : NULL;
}

struct object *object_of(uint32_t handle) { return handle < OBJECTS ? kernel->objects[handle] : NULL; }

void free_object(struct object *o)
{
	if (driver->release)
		driver->release(o);
	if (o->kind == SRQ)
		free(((struct srq *)o)->tags);
	kernel->objects[o->handle] = NULL;
	hold(o->kind, -1);
	free(o);
}

void each(enum kind kind, void (*f)(void *))
{
	for (uint32_t h = 1; h <= kernel->highest; h++)
		if (kernel->objects[h] && kernel->objects[h]->kind == kind)
			f(kernel->objects[h]);
}

// free_kind frees the objects of a kind of a file, or all objects.
static void free_kind(struct file *f, enum kind kind)
{
	for (uint32_t h = 1; h <= kernel->highest; h++) {
		struct object *o = kernel->objects[h];
		if (!o || o->file != f || kind != NONE && o->kind != kind)
			continue;
		switch (o->kind) {
		case OPENED_QP:
			release_opened_qp((struct opened_qp *)o);
			continue;
		case QP:
			release_qp((struct qp *)o);
			continue;
		case CHANNEL:
			close_events(&((struct channel *)o)->events);
			break;
		default:
			break;
		}
		free_object(o);
	}
}

// Closing a file frees all of its objects: first queue pairs, which refer to others.
void free_objects(struct file *f)
{
	free_kind(f, OPENED_QP);
	free_kind(f, QP);
	free_kind(f, NONE);
	if (f->context)
		hold(CONTEXT, -1);
}

int destroy_object(struct object *o)
{
	if (!o)
		return ENOENT;
	if (o->users)
		return EBUSY;
	free_object(o);
	return 0;
}

// Device, protection domains, memory

static int get_context(struct call *c)
{
	if (c->file->context)
		return EINVAL;
	int err = driver->get_context(c);
	if (err)
		return err;
	if (!open_events(&c->file->async))
		return ENOMEM;
	c->file->context = true;
	hold(CONTEXT, 1);
	struct ib_uverbs_get_context_resp r = {.async_fd = c->file->async.theirs, .num_comp_vectors = VECTORS};
	return answer(c, &r, sizeof r);
}

const uint8_t node_guid[8] = {0x02, 0x67, 0x6f, 0x76, 0x65, 0x72, 0x62, 0x73};

static struct ib_uverbs_query_device_resp described(void)
{
	struct ib_uverbs_query_device_resp r = *driver->device;
	if (getenv("GOVERBS_EMULATED_NO_ATOMICS"))
		r.atomic_cap = IBV_ATOMIC_NONE;
	memcpy(&r.node_guid, node_guid, sizeof node_guid);
	memcpy(&r.sys_image_guid, node_guid, sizeof node_guid);
	return r;
}

static int query_device(struct call *c)
{
	struct ib_uverbs_query_device_resp r = described();
	return answer(c, &r, sizeof r);
}

static int query_device_ex(struct call *c)
{
	struct ib_uverbs_ex_query_device_resp r = {.base = described(), .hca_core_clock = 1000000}; // kHz
	if (driver->timestamps)
		r.timestamp_mask = ~0ull;
	if (infiniband() && !driver->scalable) // needed by libmlx5's queue pair for tags
		r.tm_caps = (struct ib_uverbs_tm_caps){64, MOST_TAGS, IBV_TM_CAP_RC, MOST_REQUESTS, 1, 0};
	r.max_dm_size = driver->device_memory;
	r.device_cap_flags_ex = r.base.device_cap_flags;
	r.response_length = c->out_size < sizeof r ? c->out_size : sizeof r;
	answer(c, &r, sizeof r);
	return driver->query_device(c);
}

bool infiniband(void) { return getenv("GOVERBS_EMULATED_INFINIBAND"); }

static int query_port(struct call *c)
{
	struct ib_uverbs_query_port q;
	TAKE(c, q);
	if (q.port_num != 1)
		return EINVAL;
	struct ib_uverbs_query_port_resp r = *driver->port;
	if (infiniband())
		r.link_layer = IBV_LINK_LAYER_INFINIBAND, r.lid = 1, r.port_cap_flags = 0;
	return answer(c, &r, sizeof r);
}

static int alloc_pd(struct call *c)
{
	struct pd *pd = new_object(c->file, PD, sizeof *pd);
	if (!pd)
		return ENOMEM;
	struct ib_uverbs_alloc_pd_resp r = {.pd_handle = pd->o.handle};
	answer(c, &r, sizeof r);
	return driver->alloc_pd(c, pd);
}

static int dealloc_pd(struct call *c)
{
	struct ib_uverbs_dealloc_pd q;
	TAKE(c, q);
	return destroy_object(find_object(c->file, PD, q.pd_handle));
}

static int create_ah(struct call *c)
{
	struct ib_uverbs_create_ah q;
	TAKE(c, q);
	struct pd *pd = find_object(c->file, PD, q.pd_handle);
	if (!pd || q.attr.port_num != 1)
		return EINVAL;
	struct ah *ah = new_object(c->file, AH, sizeof *ah);
	if (!ah)
		return ENOMEM;
	ah->pd = pd;
	memcpy(ah->to, q.attr.grh.dgid, sizeof ah->to);
	pd->o.users++;
	struct ib_uverbs_create_ah_resp r = {.ah_handle = ah->o.handle};
	answer(c, &r, sizeof r);
	return driver->create_ah(c, ah);
}

static int destroy_ah(struct call *c)
{
	struct ib_uverbs_destroy_ah q;
	TAKE(c, q);
	struct ah *ah = find_object(c->file, AH, q.ah_handle);
	if (ah)
		ah->pd->o.users--;
	return destroy_object(ah ? &ah->o : NULL);
}

const struct command object_commands[] = {
	{IB_USER_VERBS_CMD_GET_CONTEXT, get_context},
	{IB_USER_VERBS_CMD_QUERY_DEVICE, query_device},
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_QUERY_DEVICE, query_device_ex},
	{IB_USER_VERBS_CMD_QUERY_PORT, query_port},
	{IB_USER_VERBS_CMD_ALLOC_PD, alloc_pd},
	{IB_USER_VERBS_CMD_DEALLOC_PD, dealloc_pd},
	{IB_USER_VERBS_CMD_CREATE_AH, create_ah},
	{IB_USER_VERBS_CMD_DESTROY_AH, destroy_ah},
	{0, NULL},
};
