package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestConnectAllowsWhatThereIs: what peers reach is up to memory regions, so a connection allows all that its type and its device have.
func TestConnectAllowsWhatThereIs(t *testing.T) {
	pd := softPD(t)
	const plain = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ
	for kind, want := range map[ibv.QPType]ibv.AccessFlags{ibv.QPT_RC: plain | ibv.ACCESS_REMOTE_ATOMIC, ibv.QPT_UD: 0} {
		e := newSoftEnd(t, pd, kind)
		peer, err := e.qp.Endpoint()
		require.NoError(t, err)
		attr, err := e.qp.ConnectAttr(peer)
		require.NoError(t, err)
		assert.Equal(t, want, attr.QPAccessFlags, "%v", kind)
	}
}
