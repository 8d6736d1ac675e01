// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestPool: memory of a closed connection is the next one's, without what it had and without the key that the peer
// knew; and no more is kept than may be.
func TestPool(t *testing.T) {
	f, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := rdma.OpenOn(f, "soft0")
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	of := shape{there: 8192, staged: 4096, recvs: 4, sges: 1}
	p := Pool{Most: 2*of.bytes() + 1}
	var all [3]*memory
	for i := range all {
		all[i], err = p.get(pd, of)
		require.NoError(t, err)
		assert.Nil(t, all[i].mr, "nothing was sent from there")
		_, err = all[i].region(pd)
		require.NoError(t, err)
	}
	a := all[0]
	address, key, sends := a.there.Address(), a.thereMR.RKey(), a.mr.LKey()
	same, err := a.region(pd)
	require.NoError(t, err)
	assert.Equal(t, sends, same.LKey)
	a.there.Bytes()[8191] = 1
	a.recvs.Recv(1)
	require.NoError(t, p.put(a))
	other := of
	other.there *= 2
	b, err := p.get(pd, other)
	require.NoError(t, err)
	assert.NotSame(t, a, b, "of another shape")
	require.NoError(t, p.put(b))
	again, err := p.get(pd, of)
	require.NoError(t, err)
	assert.Same(t, a, again)
	assert.Equal(t, address, again.there.Address())
	assert.NotEqual(t, key, again.thereMR.RKey())
	assert.Equal(t, sends, again.mr.LKey(), "still registered")
	assert.Equal(t, make([]byte, 8192), again.there.Bytes())
	assert.Zero(t, again.recvs.Len())
	for _, m := range all {
		require.NoError(t, p.put(m))
	}
	assert.LessOrEqual(t, p.bytes, p.Most)
	assert.Len(t, p.Objects(), 2)
	big := Pool{Most: 100}
	m, err := big.get(pd, of)
	require.NoError(t, err)
	require.NoError(t, big.put(m))
	m, err = p.get(pd, other) // and never registered
	require.NoError(t, err)
	require.NoError(t, p.put(m))
	assert.Empty(t, big.Objects())
	assert.ErrorIs(t, pd.Close(), rdma.ErrInUse)
	require.NoError(t, p.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, d.Close())
	require.NoError(t, f.Close())
}
