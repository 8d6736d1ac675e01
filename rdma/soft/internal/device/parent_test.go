// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestParentDomainOfAnotherDevice: a parent domain cannot be created from domains of another device.
func TestParentDomainOfAnotherDevice(t *testing.T) {
	r := newTestbed(t, Options{})
	_, err := verbs.AllocParentDomain(r.context[0], &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[1])})
	assert.ErrorIs(t, err, syscall.EINVAL)
	td, err := verbs.AllocTD(r.context[1], &ibv.TDInitAttr{})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DeallocTD(td)) }()
	_, err = verbs.AllocParentDomain(r.context[0], &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[0]), TD: ibv.PtrTo(td)})
	assert.ErrorIs(t, err, syscall.EINVAL)
}

// TestCompletionQueueInParentDomain: a parent domain cannot be deallocated before its completion queue, and a
// protection domain is not accepted as a parent domain.
func TestCompletionQueueInParentDomain(t *testing.T) {
	r := newTestbed(t, Options{})
	parent, err := verbs.AllocParentDomain(r.context[0], &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[0])})
	require.NoError(t, err)
	create := func(device int, domain *ibv.PD) (*ibv.CQEx, error) {
		return verbs.CreateCQEx(r.context[device],
			&ibv.CQInitAttrEx{CQE: 4, CompMask: ibv.CQ_INIT_ATTR_MASK_PD, ParentDomain: ibv.PtrTo(domain)})
	}
	_, err = create(0, r.pd[0])
	assert.ErrorIs(t, err, syscall.EINVAL, "not a parent domain")
	_, err = create(1, parent)
	assert.ErrorIs(t, err, syscall.EINVAL, "another device")
	cq, err := create(0, parent)
	require.NoError(t, err)
	assert.ErrorIs(t, verbs.DeallocPD(parent), syscall.EBUSY)
	require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq)))
	assert.NoError(t, verbs.DeallocPD(parent))
}

// TestAllocators: a parent domain must have both allocator functions of the program, or none. They are not called: a
// call would crash.
func TestAllocators(t *testing.T) {
	r := newTestbed(t, Options{})
	attr := ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[0]), CompMask: ibv.PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, Alloc: 1}
	_, err := verbs.AllocParentDomain(r.context[0], &attr)
	assert.ErrorIs(t, err, syscall.EINVAL)
	attr.Free = 1
	parent, err := verbs.AllocParentDomain(r.context[0], &attr)
	require.NoError(t, err)
	cq, err := verbs.CreateCQEx(r.context[0],
		&ibv.CQInitAttrEx{CQE: 4, CompMask: ibv.CQ_INIT_ATTR_MASK_PD, ParentDomain: ibv.PtrTo(parent)})
	require.NoError(t, err)
	require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq)))
	require.NoError(t, verbs.DeallocPD(parent))
}

// TestDMAHandles: valid hints are accepted and others rejected. A handle cannot be freed before its regions.
func TestDMAHandles(t *testing.T) {
	r := newTestbed(t, Options{})
	const all = ibv.DMAH_INIT_ATTR_MASK_CPU_ID | ibv.DMAH_INIT_ATTR_MASK_PH | ibv.DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
	for _, wrong := range []ibv.DMAHInitAttr{
		{CompMask: all, PH: 4}, {CompMask: all, CPUID: 0xffff}, {CompMask: all, TPHMemType: 2},
	} {
		_, err := verbs.AllocDMAH(r.context[0], &wrong)
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err := verbs.AllocDMAH(r.context[0], &ibv.DMAHInitAttr{CompMask: 8})
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
	h, err := verbs.AllocDMAH(r.context[0], &ibv.DMAHInitAttr{CompMask: all, PH: 3, TPHMemType: 1})
	require.NoError(t, err)
	memory := make([]byte, impl.PageSize)
	attr := ibv.MRInitAttr{CompMask: ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_DMAH, Length: impl.PageSize,
		Addr: uintptr(mem.AddressOf(&memory[0])), Access: ibv.ACCESS_LOCAL_WRITE, DMAH: ibv.PtrTo(h)}
	_, err = verbs.RegMREx(r.pd[1], &attr)
	assert.ErrorIs(t, err, syscall.EINVAL, "another device")
	attr.Access |= ibv.ACCESS_ON_DEMAND
	_, err = verbs.RegMREx(r.pd[0], &attr)
	assert.ErrorIs(t, err, syscall.EINVAL)
	attr.Access = ibv.ACCESS_LOCAL_WRITE
	mr, err := verbs.RegMREx(r.pd[0], &attr)
	require.NoError(t, err)
	assert.ErrorIs(t, verbs.DeallocDMAH(h), syscall.EBUSY)
	require.NoError(t, verbs.DeregMR(mr))
	require.NoError(t, verbs.DeallocDMAH(h))
	_, err = verbs.RegMREx(r.pd[0], &attr)
	assert.ErrorIs(t, err, syscall.EINVAL, "already freed")
}

// TestPortSpeed: the speed is the product of the port's active width and active speed.
func TestPortSpeed(t *testing.T) {
	r := newTestbed(t, Options{})
	var speed uint64
	require.NoError(t, verbs.QueryPortSpeed(r.context[0], impl.PortNum, &speed))
	assert.EqualValues(t, 1000, speed)
	assert.ErrorIs(t, verbs.QueryPortSpeed(r.context[0], 2, &speed), syscall.EINVAL)
}
