// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
)

// TestParentDomainOfAnotherDevice: there is none.
func TestParentDomainOfAnotherDevice(t *testing.T) {
	r := newRig(t, Options{})
	_, err := verbs.AllocParentDomain(r.context[0], &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[1])})
	assert.ErrorIs(t, err, errnos.EINVAL)
	td, err := verbs.AllocTD(r.context[1], &ibv.TDInitAttr{})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DeallocTD(td)) }()
	_, err = verbs.AllocParentDomain(r.context[0], &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[0]), TD: ibv.PtrTo(td)})
	assert.ErrorIs(t, err, errnos.EINVAL)
}

// TestCompletionQueueInParentDomain: the domain stays as long as the queue does, and a plain domain is none.
func TestCompletionQueueInParentDomain(t *testing.T) {
	r := newRig(t, Options{})
	parent, err := verbs.AllocParentDomain(r.context[0], &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(r.pd[0])})
	require.NoError(t, err)
	create := func(device int, domain *ibv.PD) (*ibv.CQEx, error) {
		return verbs.CreateCQEx(r.context[device],
			&ibv.CQInitAttrEx{CQE: 4, CompMask: ibv.CQ_INIT_ATTR_MASK_PD, ParentDomain: ibv.PtrTo(domain)})
	}
	_, err = create(0, r.pd[0])
	assert.ErrorIs(t, err, errnos.EINVAL, "it is no parent domain")
	_, err = create(1, parent)
	assert.ErrorIs(t, err, errnos.EINVAL, "it is another device's")
	cq, err := create(0, parent)
	require.NoError(t, err)
	assert.ErrorIs(t, verbs.DeallocPD(parent), errnos.EBUSY)
	require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq)))
	assert.NoError(t, verbs.DeallocPD(parent))
}
