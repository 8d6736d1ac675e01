// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"encoding/binary"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestBatch checks that operations of every kind are posted in order and can be posted again.
func TestBatch(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to, c := remote(t, remoteMR), r.a.conn
		b, err := c.NewBatch(8)
		require.NoError(t, err)
		defer b.Close()
		copy(localMR.Bytes(), "abcdefgh")
		require.NoError(t, b.Write(to, 0, localMR, 0, 4, OnError, 1))
		require.NoError(t, b.Write(to, 20, localMR, 4, 4, OnError, 2))
		require.NoError(t, b.Flush(to, 0, 64, Visibility, OnError, 3))
		require.NoError(t, b.AtomicWrite(to, 8, [8]byte{9}, OnError, 4))
		require.NoError(t, b.Read(localMR, 32, to, 0, 32, OnError, 5))
		require.NoError(t, b.Send(localMR, 0, 3, OnError, 6))
		require.NoError(t, b.SendWithImm(localMR, 0, 4, OnError, 66, 7))
		assert.ErrorIs(t, b.Write(to, 60, localMR, 0, 8, OnError, 8), ErrInvalid, "a rejected operation is not kept")
		require.NoError(t, b.WriteWithImm(to, 40, localMR, 0, 8, Always, 77, 8))
		assert.Equal(t, 8, b.Len())
		err = b.Write(to, 0, localMR, 0, 4, Always, 9)
		assert.Equal(t, ErrNoMemory, CodeOf(err))
		assert.ErrorIs(t, err, syscall.ENOMEM)
		for range 3 {
			clear(remoteMR.Bytes())
			clear(localMR.Bytes()[32:])
			for i := range uint64(3) {
				require.NoError(t, r.b.conn.Recv(remoteMR, 48, 8, i))
			}
			posted, err := b.Post()
			require.NoError(t, err)
			assert.Equal(t, 8, posted)
			r.a.done(8)
			want := append([]byte("abcd\x00\x00\x00\x00\x09"), append(make([]byte, 11), "efgh"...)...)
			assert.Equal(t, want, remoteMR.Bytes()[:24])
			assert.Equal(t, want, localMR.Bytes()[32:56])
			assert.Equal(t, "abcdefgh", string(remoteMR.Bytes()[40:48]))
			for i, n := range []uint32{3, 4, 8} {
				wc := r.b.done(uint64(i))
				assert.Equal(t, n, wc.ByteLen)
				imm, _ := Immediate(&wc)
				assert.Equal(t, []uint32{0, 66, 77}[i], imm)
			}
		}
		b.Reset()
		assert.Zero(t, b.Len())
		posted, err := b.Post()
		assert.Zero(t, posted)
		assert.NoError(t, err)
	})
}

// TestBatchWithoutRoom checks that Post posts only the operations that fit into the queue, and returns their number.
func TestBatchWithoutRoom(t *testing.T) {
	r := connected(t, options{})
	to := remote(t, r.b.memory(64, everyUsage))
	b, err := r.a.conn.NewBatch(20)
	require.NoError(t, err)
	defer b.Close()
	for id := range uint64(12) {
		require.NoError(t, b.Flush(to, 0, 8, Visibility, Always, id))
	}
	posted, err := b.Post()
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.Equal(t, defaultQueueSize, posted)
	for id := range uint64(posted) {
		r.a.done(id)
	}
	_, err = r.a.conn.NewBatch(0)
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestBatchNoAllocation checks that collecting and posting do not allocate.
func TestBatchNoAllocation(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector allocates")
	}
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to := remote(t, remoteMR)
		b, err := r.a.conn.NewBatch(4)
		require.NoError(t, err)
		defer b.Close()
		wcs := make([]ibv.WC, 1)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			b.Reset()
			b.Write(to, 0, localMR, 0, 8, OnError, 0)
			b.Flush(to, 0, 8, Visibility, OnError, 0)
			b.AtomicWrite(to, 8, [8]byte{}, OnError, 0)
			b.Flush(to, 8, 8, Visibility, Always, 0)
			if n, err := b.Post(); n != 4 || err != nil {
				t.Fatal(n, err)
			}
			if n, err := r.a.conn.CQ().Poll(wcs); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}))
	})
}

// TestAsync checks that goroutines can wait for their own operations in any order.
func TestAsync(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		const workers, rounds = 4, 50
		localMR, remoteMR := r.a.memory(64*workers, everyUsage), r.b.memory(64*workers, everyUsage)
		to := remote(t, remoteMR)
		async, err := r.a.conn.NewAsync(2 * workers)
		require.NoError(t, err)
		_, err = r.a.conn.NewAsync(1)
		assert.ErrorIs(t, err, rdma.ErrInUse, "the connection already has an Async")
		_, err = r.a.conn.CQ().Poll(make([]ibv.WC, 1))
		assert.ErrorIs(t, err, rdma.ErrInUse)
		ctx := timeout(t)
		var all sync.WaitGroup
		for w := range uint64(workers) {
			all.Go(func() {
				own := localMR.Bytes()[64*w:][:64]
				for i := range uint64(rounds) {
					binary.LittleEndian.PutUint64(own, i)
					write, err := async.Write(to, 64*w, localMR, 64*w, 8)
					assert.NoError(t, err)
					flush, err := async.Flush(to, 64*w, 8, Visibility)
					assert.NoError(t, err)
					_, err = flush.Wait(ctx)
					assert.NoError(t, err)
					assert.Equal(t, i, binary.LittleEndian.Uint64(remoteMR.Bytes()[64*w:]))
					_, err = write.Wait(ctx)
					assert.NoError(t, err)
					read, err := async.Read(localMR, 64*w+8, to, 64*w, 8)
					assert.NoError(t, err)
					wc, err := read.Wait(ctx)
					assert.NoError(t, err)
					assert.Equal(t, ibv.WC_RDMA_READ, wc.Opcode)
					assert.Equal(t, i, binary.LittleEndian.Uint64(own[8:]))
					_, err = read.Wait(ctx)
					assert.ErrorIs(t, err, rdma.ErrClosed, "the operation has ended")
				}
			})
		}
		all.Wait()
		atomic, err := async.AtomicWrite(to, 0, [8]byte{5})
		require.NoError(t, err)
		_, err = atomic.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, byte(5), remoteMR.Bytes()[0])
		require.NoError(t, async.Close())
		require.NoError(t, r.a.conn.Write(to, 0, localMR, 0, 8, Always, 1))
		r.a.done(1)
		_, err = async.Send(localMR, 0, 8)
		assert.ErrorIs(t, err, rdma.ErrClosed)
	})
}

// TestAsyncMessages checks that receives that complete in the same queue can be waited for.
func TestAsyncMessages(t *testing.T) {
	r := connected(t, options{connA: &ConnConfig{RecvCQSize: 1}})
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to := remote(t, remoteMR)
	a, err := r.a.conn.NewAsync(4)
	require.NoError(t, err)
	b, err := r.b.conn.NewAsync(4)
	require.NoError(t, err)
	_, err = a.Recv(localMR, 0, 8)
	assert.ErrorIs(t, err, ErrInvalid)
	for imm, start := range []func() (Op, error){
		func() (Op, error) { return a.Send(localMR, 0, 8) },
		func() (Op, error) { return a.SendWithImm(localMR, 0, 8, 1) },
		func() (Op, error) { return a.WriteWithImm(to, 0, localMR, 0, 8, 2) },
	} {
		recv, err := b.Recv(remoteMR, 0, 8)
		require.NoError(t, err)
		sent, err := start()
		require.NoError(t, err)
		_, err = sent.Wait(timeout(t))
		require.NoError(t, err)
		wc, err := recv.Wait(timeout(t))
		require.NoError(t, err)
		got, _ := Immediate(&wc)
		assert.Equal(t, uint32(imm), got)
	}
}

// TestAsyncRejectedOperations checks that rejected operations do not occupy the queue.
func TestAsyncRejectedOperations(t *testing.T) {
	r := connected(t, options{})
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to := remote(t, remoteMR)
	a, err := r.a.conn.NewAsync(2)
	require.NoError(t, err)
	for range 5 {
		_, err = a.Write(to, 60, localMR, 0, 8)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	op, err := a.Write(to, 0, localMR, 0, 8)
	require.NoError(t, err)
	_, err = op.Wait(timeout(t))
	require.NoError(t, err)
	require.NoError(t, a.Close())
}

// TestAsyncFails checks that a failed operation returns an explanation, that later operations end, and that closing the
// connection ends waits.
func TestAsyncFails(t *testing.T) {
	r := connected(t, options{b: PeerOptions{ReadFlush: true}})
	here := r.a.memory(64, everyUsage)
	to := remote(t, r.b.memory(64, WriteDst|FlushVisibility))
	async, err := r.a.conn.NewAsync(8)
	require.NoError(t, err)
	flush, err := async.Flush(to, 0, 64, Visibility)
	require.NoError(t, err)
	write, err := async.Write(to, 0, here, 0, 8)
	require.NoError(t, err)
	_, err = flush.Wait(timeout(t))
	assert.ErrorContains(t, err, "PeerOptions.ReadFlush")
	_, err = write.Wait(timeout(t))
	assert.ErrorIs(t, err, &rdma.CompletionError{Status: ibv.WC_WR_FLUSH_ERR})
	_, err = async.Write(to, 60, here, 0, 8)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = Op{}.Wait(timeout(t))
	assert.ErrorIs(t, err, rdma.ErrClosed)

	r = connected(t, options{})
	here = r.a.memory(64, everyUsage)
	async, err = r.a.conn.NewAsync(8)
	require.NoError(t, err)
	recv, err := async.Recv(here, 0, 8)
	require.NoError(t, err)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = recv.Wait(canceled)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, ErrNoCompletion, CodeOf(err))
	waited := make(chan error)
	ctx := timeout(t)
	go func() {
		_, err := recv.Wait(ctx)
		waited <- err
	}()
	other, err := async.Recv(here, 8, 8)
	require.NoError(t, err)
	released := make(chan struct{})
	other.Abandon(func() { close(released) })
	third, err := async.Recv(here, 16, 8)
	require.NoError(t, err)
	third.Abandon(nil)
	select {
	case <-released:
		t.Error("release was called before the completion")
	default:
	}
	require.NoError(t, r.a.conn.Close())
	assert.Error(t, <-waited)
	<-released
	require.NoError(t, async.Close())
}

// TestAsyncNoAllocation checks that an operation and its wait do not allocate.
func TestAsyncNoAllocation(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector allocates")
	}
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to, ctx := remote(t, remoteMR), timeout(t)
		async, err := r.a.conn.NewAsync(2)
		require.NoError(t, err)
		for name, start := range map[string]func() (Op, error){
			"write":        func() (Op, error) { return async.Write(to, 0, localMR, 0, 8) },
			"read":         func() (Op, error) { return async.Read(localMR, 0, to, 0, 8) },
			"flush":        func() (Op, error) { return async.Flush(to, 0, 8, Visibility) },
			"atomic write": func() (Op, error) { return async.AtomicWrite(to, 0, [8]byte{}) },
		} {
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				op, err := start()
				if err == nil {
					_, err = op.Wait(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}), name)
		}
	})
}
