// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// striped creates n connections.
func striped(t testing.TB, r *pair, n int, o options) (conns []*Conn) {
	for range n {
		a, _ := r.connect(o)
		conns = append(conns, a)
	}
	return conns
}

// TestStripe checks that transfers of any size arrive completely, over one or several connections.
func TestStripe(t *testing.T) {
	const size = 1 << 16
	for _, lanes := range []int{1, 3} {
		r := newPair(t, options{})
		localMR, remoteMR, back := r.a.memory(size, everyUsage), r.b.memory(size, everyUsage), r.a.memory(size, everyUsage)
		to := remote(t, remoteMR)
		s, err := NewStripe(1000, striped(t, r, lanes, options{connA: &ConnConfig{SQSize: 4}})...)
		require.NoError(t, err)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range localMR.Bytes() {
			localMR.Bytes()[i] = byte(random.Uint32())
		}
		for _, length := range []uint64{0, 1, 999, 1000, 1001, 12345, size - 7} {
			clear(remoteMR.Bytes())
			clear(back.Bytes())
			require.NoError(t, s.Write(timeout(t), to, 3, localMR, 7, length))
			flushes := s.lanes[lanes-1].conn.sends.flushes
			require.NoError(t, s.Flush(timeout(t), to, 3, length, Visibility))
			assert.Equal(t, flushes+1, s.lanes[lanes-1].conn.sends.flushes, "each connection flushes its own writes")
			want := append(make([]byte, 3), localMR.Bytes()[7:7+length]...)
			assert.True(t, bytes.Equal(want, remoteMR.Bytes()[:len(want)]), length)
			assert.True(t, bytes.Equal(make([]byte, size-len(want)), remoteMR.Bytes()[len(want):]), length)
			require.NoError(t, s.Read(timeout(t), back, 5, to, 3, length))
			assert.True(t, bytes.Equal(localMR.Bytes()[7:7+length], back.Bytes()[5:5+length]), length)
		}
		assert.ErrorIs(t, s.Write(timeout(t), to, 1, localMR, 0, size), ErrInvalid)
		assert.ErrorIs(t, s.Read(timeout(t), back, 1, to, 0, size), ErrInvalid)
		assert.ErrorIs(t, s.Write(timeout(t), nil, 0, localMR, 0, 0), ErrInvalid)
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
	}
}

// TestStripeFails checks that a lost connection or an ended context fails the transfer, and that the next transfer
// waits for operations that are still in progress.
func TestStripeFails(t *testing.T) {
	r := newPair(t, options{})
	localMR, remoteMR := r.a.memory(4096, everyUsage), r.b.memory(4096, everyUsage)
	to := remote(t, remoteMR)
	conns := striped(t, r, 3, options{})
	s, err := NewStripe(64, conns...)
	require.NoError(t, err)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	err = s.Write(canceled, to, 0, localMR, 0, 4096)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, ErrNoCompletion, CodeOf(err))
	require.NoError(t, s.Write(timeout(t), to, 0, localMR, 0, 4096))
	require.True(t, r.fabric.SetLink("soft1", false))
	err = s.Write(timeout(t), to, 0, localMR, 0, 4096)
	assert.ErrorIs(t, err, &rdma.CompletionError{Status: ibv.WC_RETRY_EXC_ERR})
	assert.Equal(t, ErrProvider, CodeOf(err))
	for _, op := range s.ops {
		assert.Nil(t, op.async)
	}
	require.True(t, r.fabric.SetLink("soft1", true))
	require.NoError(t, conns[1].Close())
	err = s.Write(timeout(t), to, 0, localMR, 0, 4096)
	assert.Error(t, err)
	require.NoError(t, s.Close())

	_, err = NewStripe(64)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = NewStripe(0, conns[0])
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = NewStripe(64, conns[0], conns[0])
	assert.ErrorIs(t, err, rdma.ErrInUse)
	_, err = NewStripe(64, conns[0], conns[1])
	assert.ErrorIs(t, err, rdma.ErrClosed)
	s, err = NewStripe(64, conns[0])
	require.NoError(t, err, "failed attempts must return the completion queues")
	require.NoError(t, s.Close())
}

// TestStripeAfterFailure checks that a transfer does not fail because of errors of operations that an earlier, failed
// transfer has left.
func TestStripeAfterFailure(t *testing.T) {
	r := newPair(t, options{})
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to := remote(t, remoteMR)
	s, err := NewStripe(64, striped(t, r, 2, options{})...)
	require.NoError(t, err)
	wrong := *to
	wrong.rkey++
	s.ops[1], err = s.lanes[1].Write(&wrong, 0, localMR, 0, 8)
	require.NoError(t, err)
	require.NoError(t, s.Write(timeout(t), to, 0, localMR, 0, 64), "uses only the other connection")
	assert.Error(t, s.Flush(timeout(t), to, 0, 64, Visibility), "the connection is broken")
	require.NoError(t, s.Close())
}

// TestStripeNoAllocation checks that a transfer of many chunks does not allocate.
func TestStripeNoAllocation(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector allocates")
	}
	r := newPair(t, options{})
	localMR, remoteMR := r.a.memory(4096, everyUsage), r.b.memory(4096, everyUsage)
	to, ctx := remote(t, remoteMR), timeout(t)
	s, err := NewStripe(64, striped(t, r, 2, options{})...)
	require.NoError(t, err)
	assert.Zero(t, testing.AllocsPerRun(20, func() {
		if err := s.Write(ctx, to, 0, localMR, 0, 4096); err != nil {
			t.Fatal(err)
		}
	}))
}
