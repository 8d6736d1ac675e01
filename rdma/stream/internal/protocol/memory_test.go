// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestPool: the next connection reuses the memory of a closed one, without its contents and without the key of its
// peer. The pool keeps no more than its limit.
func TestPool(t *testing.T) {
	f, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := rdma.OpenOn(f, "soft0")
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	of := shape{inbound: 8192, staged: 4096, recvs: 4, sges: 1}
	p := Pool{Most: 2*of.bytes() + 1}
	var all [3]*memory
	for i := range all {
		all[i], err = p.get(pd, of)
		require.NoError(t, err)
		assert.Nil(t, all[i].mr, "never registered, because nothing was sent")
		_, err = all[i].region(pd)
		require.NoError(t, err)
	}
	a := all[0]
	address, key, sends := a.inbound.Address(), a.inboundMR.RKey(), a.mr.LKey()
	same, err := a.region(pd)
	require.NoError(t, err)
	assert.Equal(t, sends, same.LKey)
	a.inbound.Bytes()[8191] = 1
	a.recvs.Recv(1)
	copy(a.staged.Bytes(), bytes.Repeat([]byte{1}, 4096))
	l := Link{pd: pd, memory: a, staging: a.staged.Bytes(), staged: 4000 + 3*4096, unstaged: 3900 + 3*4096}
	exposed, err := l.expose(200)
	require.NoError(t, err)
	for i, b := range l.staging { // bytes 3900 to 4000 are in flight, and 200 more are staged
		assert.Equal(t, i < 104 || i >= 3900, b == 1, "old data at %d", i)
	}
	twice, err := l.expose(200)
	require.NoError(t, err)
	assert.Same(t, exposed, twice)
	require.NoError(t, p.put(a))
	assert.Nil(t, a.exposed, "closed, because the former peer knows its key")
	other := of
	other.inbound *= 2
	b, err := p.get(pd, other)
	require.NoError(t, err)
	assert.NotSame(t, a, b, "the shape differs")
	require.NoError(t, p.put(b))
	again, err := p.get(pd, of)
	require.NoError(t, err)
	assert.Same(t, a, again)
	assert.Equal(t, address, again.inbound.Address())
	assert.NotEqual(t, key, again.inboundMR.RKey())
	assert.Equal(t, sends, again.mr.LKey(), "still registered")
	assert.Equal(t, make([]byte, 8192), again.inbound.Bytes())
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
