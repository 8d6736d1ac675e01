// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestConnectionsWithoutReads checks that posting a read fails at an end that negotiated no reads, or whose peer
// accepts none. Soft-RoCE would never execute such a read.
func TestConnectionsWithoutReads(t *testing.T) {
	some, none := cm.DefaultConnParam(), cm.DefaultConnParam()
	none.InitiatorDepth, none.ResponderResources = 0, 0
	for i, c := range []struct {
		name            string
		connect, accept *rdmacm.ConnParam
		reads           bool
	}{{"both", &some, &some, true}, {"not the client", &none, &some, false}, {"not the server", &some, &none, false}} {
		port := uint16(7565 + i)
		l := listen(t, port)
		type end struct {
			id  *cm.ID
			err error
		}
		accepted := make(chan end, 1)
		go func() {
			id, _, err := l.GetRequest(withTimeout(t))
			if err == nil {
				_, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
			}
			if err == nil {
				err = id.Accept(withTimeout(t), c.accept, nil)
			}
			accepted <- end{id, err}
		}()
		client := resolve(t, address(t, port))
		require.NoError(t, client.Connect(withTimeout(t), c.connect, nil))
		server := <-accepted
		keep(t, server.id, server.err)
		for side, id := range map[string]*cm.ID{"client": client, "server": server.id} {
			err := id.PostReadv(1, nil, 0, 0, 0)
			if c.reads {
				assert.NoError(t, err, "%s: %s", c.name, side)
			} else {
				assert.ErrorContains(t, err, "IBV_WR_RDMA_READ with max_rd_atomic 0", "%s: %s", c.name, side)
			}
		}
	}
}
