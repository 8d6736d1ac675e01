// SPDX-License-Identifier: BSD-2-Clause

// Completion counters: two numbers in the program's memory, of successes and failures, which the adapter increments for
// the operations for which they were attached to a queue pair. Most installed headers do not have their commands.
#include "emulated.h"

enum { OBJECT = 19, CREATE = 0, DESTROY, MODIFY }; // methods
enum { QUERY_CAPABILITIES = 8, ATTACH = 2 };       // methods of devices and of queue pairs
enum { ALL = (1 << COUNTABLE) - 1, MOST_COUNTERS = 1 << 10 };

struct counter {
	struct object o;
	uint64_t *value[2]; // of completions, of errors
};

struct buffer { // as in the command
	uint32_t type;
	int32_t fd;
	uint32_t flags, more_flags;
	uint64_t address, length;
};

static uint64_t *memory_of(struct ib_uverbs_ioctl_hdr *h, uint16_t id)
{
	enum { OF_PROGRAM = 1 };
	struct ib_uverbs_attr *a = attribute(h, id);
	if (!a || a->len < sizeof(struct buffer))
		return NULL;
	const struct buffer *b = (const void *)(uintptr_t)a->data;
	bool fits = b->type == OF_PROGRAM && !b->flags && b->length >= sizeof(uint64_t) && !(b->address & 7);
	return fits && mapped(b->address) ? (uint64_t *)(uintptr_t)b->address : NULL;
}

static int create(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	enum { HANDLE = 0, VALUES = 1 << UVERBS_ID_NS_SHIFT, ERRORS };
	struct ib_uverbs_attr *handle = attribute(h, HANDLE);
	uint64_t *values = memory_of(h, VALUES), *errors = memory_of(h, ERRORS);
	if (!handle || !values || !errors)
		return EINVAL;
	struct counter *n = new_object(f, COUNTER, sizeof *n);
	if (!n)
		return ENOMEM;
	n->value[0] = values, n->value[1] = errors;
	handle->data = n->o.handle;
	return 0;
}

static struct counter *found(struct file *f, struct ib_uverbs_ioctl_hdr *h, uint16_t id)
{
	struct ib_uverbs_attr *handle = attribute(h, id);
	return handle ? find_object(f, COUNTER, handle->data) : NULL;
}

static int modify(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	enum { HANDLE, ENTRY, OPERATION, VALUE, ADD = 1 };
	struct counter *n = found(f, h, HANDLE);
	struct ib_uverbs_attr *entry = attribute(h, ENTRY), *operation = attribute(h, OPERATION);
	struct ib_uverbs_attr *value = attribute(h, VALUE);
	if (!n || !entry || !operation || !value)
		return EINVAL;
	// small constants are stored in place of a pointer
	unsigned which = entry->attr_data.enum_data.elem_id | (unsigned)entry->data, how = (unsigned)operation->data;
	if (which > 1 || how > ADD)
		return EINVAL;
	if (how == ADD)
		__atomic_fetch_add(n->value[which], value->data, __ATOMIC_SEQ_CST);
	else
		__atomic_store_n(n->value[which], value->data, __ATOMIC_SEQ_CST);
	return 0;
}

static int attach(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	enum { HANDLE, OF, OPERATIONS };
	struct ib_uverbs_attr *handle = attribute(h, HANDLE), *operations = attribute(h, OPERATIONS);
	struct counter *n = found(f, h, OF);
	struct qp *qp = handle ? find_object(f, QP, handle->data) : NULL;
	if (!qp || !n || !operations)
		return EINVAL;
	if (!operations->data || operations->data & ~(uint64_t)ALL)
		return EOPNOTSUPP;
	if (qp->attr.qp_state != IBV_QPS_RESET && qp->attr.qp_state != IBV_QPS_INIT)
		return EINVAL;
	for (int i = 0; i < COUNTABLE; i++)
		if (operations->data >> i & 1 && qp->counters[i])
			return EBUSY;
	for (int i = 0; i < COUNTABLE; i++)
		if (operations->data >> i & 1)
			qp->counters[i] = n, n->o.users++;
	return 0;
}

static int capabilities(struct ib_uverbs_ioctl_hdr *h)
{
	enum { COUNTERS, GREATEST, OPERATIONS };
	uint32_t counters = MOST_COUNTERS, operations = ALL;
	uint64_t greatest = ~0ull >> 1;
	return give(h, COUNTERS, &counters, sizeof counters) && give(h, GREATEST, &greatest, sizeof greatest) &&
		give(h, OPERATIONS, &operations, sizeof operations) ? 0 : EINVAL;
}

void count(struct qp *qp, enum countable what, bool succeeded)
{
	struct counter *n = qp->counters[what];
	if (n)
		__atomic_fetch_add(n->value[!succeeded], 1, __ATOMIC_SEQ_CST);
}

void forget_counters(struct qp *qp)
{
	for (int i = 0; i < COUNTABLE; i++)
		if (qp->counters[i])
			qp->counters[i]->o.users--, qp->counters[i] = NULL;
}

int counter_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	if (h->object_id == UVERBS_OBJECT_DEVICE && h->method_id == QUERY_CAPABILITIES)
		return capabilities(h);
	if (h->object_id == UVERBS_OBJECT_QP && h->method_id == ATTACH)
		return attach(f, h);
	if (h->object_id != OBJECT)
		return EPROTONOSUPPORT;
	switch (h->method_id) {
	case CREATE: return create(f, h);
	case MODIFY: return modify(f, h);
	case DESTROY: {
		struct counter *n = found(f, h, 0);
		return destroy_object(n ? &n->o : NULL);
	}
	}
	return EPROTONOSUPPORT;
}
