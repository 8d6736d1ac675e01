// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rpma"
)

// TestAcceptManyRequests checks that requests without RTU do not delay other peers, and that Accept does not fail
// because of requests that are withdrawn while they wait for the limit of their host.
func TestAcceptManyRequests(t *testing.T) {
	at := address(7690)
	server, client := newRole(t, at, rpma.Local), newRole(t, at, rpma.Remote)
	backend, err := testbed.Backend()
	require.NoError(t, err)
	endpoint, err := server.peer.Listen(server.ctx, at.String())
	require.NoError(t, err)
	connect := func() {
		t.Helper()
		accepted := make(chan error, 1)
		go func() {
			c, err := endpoint.Accept(server.ctx, nil, nil)
			if err == nil {
				err = c.Close()
			}
			accepted <- err
		}()
		c, err := client.peer.Connect(client.ctx, at.String(), nil, nil)
		require.NoError(t, err)
		require.NoError(t, <-accepted)
		require.NoError(t, c.Close())
	}
	var all []*cm.ID
	ask := func(n int) {
		t.Helper()
		ctx, end := context.WithCancel(server.ctx)
		accepting := make(chan struct{})
		go func() {
			defer close(accepting)
			if c, err := endpoint.Accept(ctx, nil, nil); err == nil {
				assert.NoError(t, c.Close())
				t.Error("Accept returned an unconfirmed request")
			}
		}()
		for range n {
			id, err := cm.CreateIDOn(backend, rdmacm.PS_TCP)
			require.NoError(t, err)
			all = append(all, id)
			require.NoError(t, id.ResolveAddr(client.ctx, netip.AddrPort{}, at, time.Second))
			require.NoError(t, id.ResolveRoute(client.ctx, time.Second))
			timeout, cancel := context.WithTimeout(client.ctx, 300*time.Millisecond)
			_ = id.Connect(timeout, &rdmacm.ConnParam{QPNum: uint32(1000 + len(all))}, nil) // without Establish
			cancel()
		}
		end()
		<-accepting
	}
	ask(8)
	start := time.Now()
	connect()
	assert.Less(t, time.Since(start), 15*time.Second) // one after another, they would take 35 s
	ask(7)
	for i := range all { // the waiting requests first
		require.NoError(t, all[len(all)-1-i].Close())
	}
	connect()
	require.NoError(t, endpoint.Close())
	for _, r := range []*role{client, server} {
		require.NoError(t, r.peer.Close())
		require.NoError(t, r.device.Close())
	}
}
