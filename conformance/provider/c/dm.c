// SPDX-License-Identifier: BSD-2-Clause

// Memory of the device, which programs map from the device file.
#include <sys/mman.h>

#include "emulated.h"

static uint64_t value(struct ib_uverbs_ioctl_hdr *h, uint16_t id)
{
	struct ib_uverbs_attr *a = attribute(h, id);
	return a ? a->data : 0;
}

static int alloc(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, UVERBS_ATTR_ALLOC_DM_HANDLE);
	uint64_t length = value(h, UVERBS_ATTR_ALLOC_DM_LENGTH), alignment = value(h, UVERBS_ATTR_ALLOC_DM_ALIGNMENT);
	if (!handle || !length || length > driver->device_memory || alignment > 12)
		return handle ? EINVAL : EPROTONOSUPPORT;
	struct dm *dm = new_object(f, DM, sizeof *dm);
	if (!dm)
		return ENOMEM;
	dm->length = length;
	int err = driver->alloc_dm(h, dm);
	if (err)
		free_object(&dm->o);
	else
		handle->data = dm->o.handle;
	return err;
}

static int register_dm(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_attr *handle = attribute(h, UVERBS_ATTR_REG_DM_MR_HANDLE);
	struct pd *pd = find_object(f, PD, value(h, UVERBS_ATTR_REG_DM_MR_PD_HANDLE));
	struct dm *dm = find_object(f, DM, value(h, UVERBS_ATTR_REG_DM_MR_DM_HANDLE));
	uint64_t offset = value(h, UVERBS_ATTR_REG_DM_MR_OFFSET), length = value(h, UVERBS_ATTR_REG_DM_MR_LENGTH);
	uint32_t access = value(h, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS);
	if (!handle || !pd || !dm || !(access & IBV_ACCESS_ZERO_BASED) || offset > dm->length ||
		length > dm->length - offset)
		return EINVAL;
	struct mr *mr = new_object(f, MR, sizeof *mr);
	if (!mr)
		return ENOMEM;
	mr->pd = pd, mr->dm = dm;
	pd->o.users++, dm->o.users++;
	mr->start = (uintptr_t)dm->at + offset, mr->length = length, mr->access = access;
	mr->key = mr->o.handle << 8 | ++kernel->variant;
	handle->data = mr->o.handle;
	return give(h, UVERBS_ATTR_REG_DM_MR_RESP_LKEY, &mr->key, sizeof mr->key) &&
		give(h, UVERBS_ATTR_REG_DM_MR_RESP_RKEY, &mr->key, sizeof mr->key) ? 0 : EINVAL;
}

int dm_ioctl(struct file *f, struct ib_uverbs_ioctl_hdr *h)
{
	if (!driver->device_memory)
		return EPROTONOSUPPORT;
	if (h->object_id == UVERBS_OBJECT_MR && h->method_id == UVERBS_METHOD_DM_MR_REG)
		return register_dm(f, h);
	if (h->object_id == UVERBS_OBJECT_COUNTERS)
		return counters_ioctl(f, h);
	if (h->object_id != UVERBS_OBJECT_DM)
		return EPROTONOSUPPORT;
	if (h->method_id == UVERBS_METHOD_DM_ALLOC)
		return alloc(f, h);
	if (h->method_id != UVERBS_METHOD_DM_FREE)
		return EPROTONOSUPPORT;
	struct dm *dm = find_object(f, DM, value(h, UVERBS_ATTR_FREE_DM_HANDLE));
	return destroy_object(dm ? &dm->o : NULL);
}
