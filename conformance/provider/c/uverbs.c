// SPDX-License-Identifier: BSD-2-Clause

// Command dispatch: the ioctl that carries classic write commands. Other methods are rejected like on an old kernel, so
// that libibverbs falls back to the classic command, except those that the driver implements.
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

const struct driver *driver = &mlx5;

static __attribute__((constructor)) void choose(void)
{
	const struct driver *const all[] = {&mlx5, &efa, &mlx4, &erdma, &mana, &irdma, &bnxt_re, &hns};
	const char *kind = getenv("GOVERBS_EMULATED");
	for (size_t i = 0; kind && i < sizeof all / sizeof *all; i++)
		if (strcmp(kind, all[i]->name) == 0)
			driver = all[i];
}

int refuse(const char *what, uint64_t which)
{
	fprintf(stderr, "emulated %s: %s %llu: not emulated\n", driver->name, what, (unsigned long long)which);
	return EOPNOTSUPP;
}

int take(struct call *c, void *to, size_t size)
{
	if (c->in_size < size)
		return EINVAL;
	memcpy(to, c->in, size);
	return 0;
}

// Missing input of older programs is zero.
int take_driver(struct call *c, void *to, size_t size)
{
	memset(to, 0, size);
	memcpy(to, c->driver_in, c->driver_in_size < size ? c->driver_in_size : size);
	return 0;
}

static int cut(uint8_t *to, size_t room, const void *from, size_t size)
{
	if (room)
		memset(to, 0, room);
	memcpy(to, from, size < room ? size : room);
	return 0;
}

int answer(struct call *c, const void *from, size_t size) { return cut(c->out, c->out_size, from, size); }

int answer_driver(struct call *c, const void *from, size_t size)
{
	return cut(c->driver_out, c->driver_out_size, from, size);
}

struct ib_uverbs_attr *attribute(struct ib_uverbs_ioctl_hdr *h, uint16_t id)
{
	for (int i = 0; i < h->num_attrs; i++)
		if (h->attrs[i].attr_id == id)
			return &h->attrs[i];
	return NULL;
}

// give writes an output attribute, if the program requested it and its buffer is large enough.
bool give(struct ib_uverbs_ioctl_hdr *h, uint16_t id, const void *from, size_t size)
{
	struct ib_uverbs_attr *a = attribute(h, id);
	if (!a || a->len < size)
		return false;
	memcpy((void *)(uintptr_t)a->data, from, size);
	a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
	return true;
}

// Small input is stored in the attribute itself.
static const uint8_t *input(struct ib_uverbs_attr *a, size_t *size)
{
	*size = a ? a->len : 0;
	if (!a)
		return NULL;
	return a->len <= sizeof a->data ? (const uint8_t *)&a->data : (const uint8_t *)(uintptr_t)a->data;
}

static uint8_t *output(struct ib_uverbs_attr *a, size_t *size)
{
	*size = a ? a->len : 0;
	if (!a)
		return NULL;
	a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
	return (uint8_t *)(uintptr_t)a->data;
}

static int invoke_write(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *command = attribute(h, UVERBS_ATTR_WRITE_CMD);
	if (!command)
		return EINVAL;
	struct call c = {.file = f};
	uint32_t number = command->data;
	c.in = input(attribute(h, UVERBS_ATTR_CORE_IN), &c.in_size);
	c.out = output(attribute(h, UVERBS_ATTR_CORE_OUT), &c.out_size);
	c.driver_in = input(attribute(h, UVERBS_ATTR_UHW_IN), &c.driver_in_size);
	c.driver_out = output(attribute(h, UVERBS_ATTR_UHW_OUT), &c.driver_out_size);

	if (number == IB_USER_VERBS_CMD_QUERY_DEVICE && !c.out)
		return ENOSPC; // libibverbs probes for INVOKE_WRITE in this way
	if (recording())
		record_call(&c, number);
	const struct command *tables[] = {
		object_commands, memory_commands, completion_commands, queue_commands, srq_commands, xrc_commands,
		flow_commands,
	};
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		for (const struct command *t = tables[i]; t->run; t++)
			if (t->number == number)
				return t->run(&c);
	bool extended = number & IB_USER_VERBS_CMD_FLAG_EXTENDED;
	return refuse(extended ? "extended command" : "command", number & ~IB_USER_VERBS_CMD_FLAG_EXTENDED);
}

int uverbs_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	if (h->object_id == UVERBS_OBJECT_DEVICE && h->method_id == UVERBS_METHOD_INVOKE_WRITE)
		return invoke_write(f, h);
	if (h->object_id == UVERBS_OBJECT_DEVICE &&
		(h->method_id == UVERBS_METHOD_QUERY_GID_TABLE || h->method_id == UVERBS_METHOD_QUERY_GID_ENTRY))
		return query_gids(h);
	if (recording())
		record_method(h);
	if (h->object_id == UVERBS_OBJECT_MR && h->method_id == UVERBS_METHOD_REG_DMABUF_MR)
		return reg_dmabuf(f, h);
	if (h->object_id >> UVERBS_ID_NS_SHIFT || h->method_id >> UVERBS_ID_NS_SHIFT)
		return driver->ioctl(f, h);
	return driver->scalable ? counter_ioctl(f, h) : dm_ioctl(f, h);
}
