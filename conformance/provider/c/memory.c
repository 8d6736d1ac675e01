// SPDX-License-Identifier: BSD-2-Clause

// Commands of memory regions and windows, and key lookup. A key consists of the handle of its object and a byte that
// changes each time. Registration does not pin memory: a key refers to the program's current mapping.
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "emulated.h"

// mapped reports whether a byte can be read. Under a processor emulator the granularity may be a page.
bool mapped(uint64_t at)
{
	char byte;
	struct iovec local = {&byte, 1}, remote = {(void *)at, 1};
	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1)
		return true;
	return errno == ENOSYS && msync((void *)(at & ~4095ull), 1, MS_ASYNC) == 0;
}

// pinnable returns the error for which a region cannot have this memory, or 0.
static int pinnable(uint64_t start, uint64_t length, uint64_t va)
{
	if (start + length < start || (start ^ va) & 4095)
		return EINVAL;
	return length && !(mapped(start) && mapped(start + length - 1)) ? EFAULT : 0; // unmapped memory
}

static int reg_mr(struct call *c)
{
	struct ib_uverbs_reg_mr q;
	TAKE(c, q);
	struct pd *pd = find_object(c->file, PD, q.pd_handle);
	int err = pd ? pinnable(q.start, q.length, q.hca_va) : EINVAL;
	if (err == EINVAL)
		return err;
	if (q.access_flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) &&
		!(q.access_flags & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	if (q.access_flags & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED))
		return refuse("access flags", q.access_flags);
	if (err)
		return err;
	struct mr *mr = new_object(c->file, MR, sizeof *mr);
	if (!mr)
		return ENOMEM;
	mr->pd = pd;
	pd->o.users++;
	mr->start = q.start, mr->length = q.length, mr->va = q.hca_va, mr->access = q.access_flags;
	mr->key = mr->o.handle << 8 | ++kernel->variant;
	struct ib_uverbs_reg_mr_resp r = {.mr_handle = mr->o.handle, .lkey = mr->key, .rkey = mr->key};
	return answer(c, &r, sizeof r);
}

static uint64_t value(struct ib_uverbs_ioctl_hdr *h, uint16_t id)
{
	struct ib_uverbs_attr *a = attribute(h, id);
	return a ? a->data : 0;
}

// reg_dmabuf registers a part of a dma-buf. A file in memory takes its place.
int reg_dmabuf(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
	struct pd *pd = find_object(f, PD, value(h, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE));
	uint64_t words[] = {value(h, UVERBS_ATTR_REG_DMABUF_MR_OFFSET), value(h, UVERBS_ATTR_REG_DMABUF_MR_LENGTH),
		value(h, UVERBS_ATTR_REG_DMABUF_MR_IOVA), value(h, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)};
	if (recording())
		record_words("dma-buf", words, sizeof words);
	uint64_t offset = words[0], length = words[1], va = words[2], in_page = offset & (PAGE - 1);
	if (!handle || !pd || in_page != (va & (PAGE - 1)))
		return EINVAL;
	size_t size = in_page + length;
	void *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, value(h, UVERBS_ATTR_REG_DMABUF_MR_FD),
		offset - in_page);
	if (buffer == MAP_FAILED)
		return errno;
	struct mr *mr = new_object(f, MR, sizeof *mr);
	if (!mr)
		return ENOMEM;
	mr->pd = pd;
	pd->o.users++;
	mr->buffer = buffer, mr->size = size;
	mr->start = (uintptr_t)buffer + in_page, mr->length = length, mr->va = va, mr->access = words[3];
	mr->key = mr->o.handle << 8 | ++kernel->variant;
	handle->data = mr->o.handle;
	return give(h, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &mr->key, sizeof mr->key) &&
		give(h, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &mr->key, sizeof mr->key) ? 0 : EINVAL;
}

static int rereg_mr(struct call *c)
{
	struct ib_uverbs_rereg_mr q;
	TAKE(c, q);
	struct mr *mr = find_object(c->file, MR, q.mr_handle);
	if (!mr || q.flags & ~IBV_REREG_MR_FLAGS_SUPPORTED)
		return mr ? EINVAL : ENOENT;
	struct pd *pd = q.flags & IBV_REREG_MR_CHANGE_PD ? find_object(c->file, PD, q.pd_handle) : mr->pd;
	if (!pd)
		return EINVAL;
	if (mr->o.users)
		return EBUSY;
	bool moves = q.flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	int err = moves ? pinnable(q.start, q.length, q.hca_va) : 0;
	if (err)
		return err;
	if (moves)
		mr->start = q.start, mr->length = q.length, mr->va = q.hca_va;
	mr->pd->o.users--, pd->o.users++;
	mr->pd = pd;
	if (q.flags & IBV_REREG_MR_CHANGE_ACCESS)
		mr->access = q.access_flags;
	struct ib_uverbs_rereg_mr_resp r = {.lkey = mr->key, .rkey = mr->key};
	return answer(c, &r, sizeof r);
}

static int dereg_mr(struct call *c)
{
	struct ib_uverbs_dereg_mr q;
	TAKE(c, q);
	struct mr *mr = find_object(c->file, MR, q.mr_handle);
	if (mr && !mr->o.users) { // no window is bound to it
		mr->pd->o.users--;
		if (mr->buffer)
			munmap(mr->buffer, mr->size);
		if (mr->dm)
			mr->dm->o.users--;
	}
	return destroy_object(mr ? &mr->o : NULL);
}

static struct mr *region(uint32_t key)
{
	struct object *o = object_of(key >> 8);
	return o && o->kind == MR && ((struct mr *)o)->key == key ? (struct mr *)o : NULL;
}

static void unbind(struct mw *mw)
{
	struct mr *mr = mw->bound ? region(mw->of) : NULL;
	if (mr)
		mr->o.users--;
	mw->bound = false;
}

static int alloc_mw(struct call *c)
{
	struct ib_uverbs_alloc_mw q;
	TAKE(c, q);
	struct pd *pd = find_object(c->file, PD, q.pd_handle);
	if (!pd || q.mw_type != IBV_MW_TYPE_1 && q.mw_type != IBV_MW_TYPE_2)
		return EINVAL;
	struct mw *mw = new_object(c->file, MW, sizeof *mw);
	if (!mw)
		return ENOMEM;
	mw->pd = pd, mw->second = q.mw_type == IBV_MW_TYPE_2;
	mw->key = mw->o.handle << 8 | ++kernel->variant;
	pd->o.users++;
	struct ib_uverbs_alloc_mw_resp r = {.mw_handle = mw->o.handle, .rkey = mw->key};
	return answer(c, &r, sizeof r);
}

static int dealloc_mw(struct call *c)
{
	struct ib_uverbs_dealloc_mw q;
	TAKE(c, q);
	struct mw *mw = find_object(c->file, MW, q.mw_handle);
	if (mw) {
		unbind(mw);
		mw->pd->o.users--;
	}
	return destroy_object(mw ? &mw->o : NULL);
}

// Keys

static bool within(uint64_t address, uint64_t length, uint64_t start, uint64_t size)
{
	return address - start <= size && length <= size - (address - start);
}

static struct mw *window(uint32_t key)
{
	struct object *o = object_of(key >> 8);
	return o && o->kind == MW && ((struct mw *)o)->key == key ? (struct mw *)o : NULL;
}

// look_up returns the memory for a key of a queue pair's protection domain, or NULL.
uint8_t *look_up(struct qp *qp, uint64_t address, uint32_t length, uint32_t key, uint32_t access)
{
	struct mw *mw = window(key);
	if (mw) {
		if (!mw->bound || mw->pd != qp->pd || mw->second && mw->qp != qp->number || (mw->access & access) != access ||
			!within(address, length, mw->address, mw->length))
			return NULL;
		key = mw->of, access = 0;
	}
	struct mr *mr = region(key);
	if (!mr || mr->pd != qp->pd || (mr->access & access) != access || !within(address, length, mr->va, mr->length))
		return NULL;
	return (uint8_t *)(uintptr_t)(mr->start + (address - mr->va));
}

bool bind_window(struct qp *qp, const struct binding *b)
{
	struct mw *mw = window(b->key);
	struct mr *mr = region(b->of);
	if (!mw || mw->pd != qp->pd || mw->second && mw->bound)
		return false;
	if (b->length && (!mr || mr->pd != qp->pd || !(mr->access & IBV_ACCESS_MW_BIND) ||
		!within(b->address, b->length, mr->va, mr->length) ||
		b->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
		return false;
	unbind(mw);
	mw->bound = b->length > 0;
	if (mw->bound)
		mr->o.users++;
	mw->key = (b->key & ~0xffu) | b->variant;
	mw->of = b->of, mw->access = b->access, mw->address = b->address, mw->length = b->length, mw->qp = qp->number;
	return true;
}

// invalidate unbinds a type 2 window that the same queue pair bound.
bool invalidate(struct qp *qp, uint32_t key)
{
	struct mw *mw = window(key);
	if (!mw || !mw->bound || !mw->second || mw->qp != qp->number)
		return false;
	unbind(mw);
	return true;
}

const struct command memory_commands[] = {
	{IB_USER_VERBS_CMD_REG_MR, reg_mr},
	{IB_USER_VERBS_CMD_REREG_MR, rereg_mr},
	{IB_USER_VERBS_CMD_DEREG_MR, dereg_mr},
	{IB_USER_VERBS_CMD_ALLOC_MW, alloc_mw},
	{IB_USER_VERBS_CMD_DEALLOC_MW, dealloc_mw},
	{0, NULL},
};
