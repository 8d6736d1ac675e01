// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestUnconfirmedRequest: Accept does not fail because a peer never confirms its connection. It takes the next one.
func TestUnconfirmedRequest(t *testing.T) {
	r := newRig(t, options{})
	id, err := cm.CreateIDOn(r.fabric, rdmacm.PS_TCP)
	require.NoError(t, err)
	defer id.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := r.ep.Accept(t.Context(), nil, nil)
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	require.NoError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, r.ep.Addr(), time.Second))
	require.NoError(t, id.ResolveRoute(t.Context(), time.Second))
	require.NoError(t, id.Connect(t.Context(), &rdmacm.ConnParam{QPNum: 99}, nil)) // and no Establish
	c, err := r.a.peer.Connect(t.Context(), r.ep.Addr().String(), nil, nil)
	require.NoError(t, err)
	assert.NoError(t, <-accepted)
	assert.NoError(t, c.Close())
}
