// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// both calls f with a device whose functions are in Go, and with one whose functions are in C, which posts call
// directly.
func both(t *testing.T, f func(t *testing.T, d *device)) {
	t.Run("Go", func(t *testing.T) { f(t, newDevice(t, ibv.QPT_RC)) })
	t.Run("C", func(t *testing.T) { f(t, native(t)) })
}

// UD overwrites the remote address of a read or write. In a send on a connected queue pair, the provider would ignore
// it.
func TestUDAddressOnConnectedQueue(t *testing.T) {
	both(t, func(t *testing.T, d *device) {
		for _, qpt := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_XRC_SEND} {
			d.qp.QPType = qpt
			q := sendQueue(t, d, options(64, 1, 16))
			b := sendBatch(t, 3, 1, 0)
			for _, n := range []int{1, 2, 3} {
				for _, post := range []func(*SendBatch) (int, error){q.Post} {
					b.Reset()
					for i := range n - 1 {
						b.Write(uint64(i), 8, 1).SGE(1, 1, 1).Signaled()
					}
					b.Send(9).SGE(1, 1, 1).UD(8, 1, 1).Signaled()
					for range 2 {
						posted, err := post(b)
						assert.Zero(t, posted)
						assert.EqualError(t, err, fmt.Sprintf("ibv_post_send: QP 0x12 (%s): WR %d (id 0x9): UD "+
							"set a datagram address, but the %[1]s queue pair is connected: invalid argument",
							refusal.ShortName(qpt), n-1))
					}
					if n > 1 {
						posted, err := q.PostRange(b, 0, n-1)
						assert.NoError(t, err, "other requests have no address")
						assert.Equal(t, n-1, posted)
					}
					posted, err := post(writes(b, 1, n))
					assert.NoError(t, err, "Reset clears the error")
					assert.Equal(t, n, posted)
				}
			}
		}
		d.qp.QPType = ibv.QPT_UD
		ud := sendQueue(t, d, options(64, 1, 16))
		d.qp.QPType = ibv.QPT_RC
		o := options(64, 1, 16)
		o.Unchecked = true
		unchecked := sendQueue(t, d, o)
		b := sendBatch(t, 1, 1, 0)
		b.Send(1).SGE(1, 1, 1).UD(8, 1, 1).Signaled()
		for range 2 {
			_, err := ud.Post(b)
			assert.NoError(t, err)
			_, err = sendQueue(t, d, options(64, 1, 16)).Post(b)
			assert.Error(t, err, "even after a queue accepted the batch")
			_, err = unchecked.Post(b)
			assert.NoError(t, err)
		}
	})
}

func TestUDAddressInProgramOfConnectedQueue(t *testing.T) {
	x := newExtended(t, ibv.QPT_RC)
	q := x.queue(t, options(8, 1, 16))
	p := NewWRProgram(&x.qp)
	p.Send(1).SGE(1, 2, 3).UD(8, 1, 1)
	assert.EqualError(t, q.PostProgram(p),
		"ibv_wr_complete: QP 0x12 (RC): WR 0: UD set a datagram address, but the RC queue pair is connected: "+
			"invalid argument")
	assert.Empty(t, x.calls)
}

// Posting a copy of a batch fails, because both would link the same requests.
func TestCopiesOfBatches(t *testing.T) {
	both(t, func(t *testing.T, d *device) {
		send := sendQueue(t, d, options(16, 1, 0))
		recv, err := NewRecvQueue(&d.qp, options(16, 1, 0))
		require.NoError(t, err)
		b, r := writes(sendBatch(t, 4, 1, 0), 1, 2), recvBatch(t, 4, 1)
		r.Recv(1)
		for range 2 {
			for _, post := range []func(b *SendBatch) (int, error){send.Post} {
				_, err = post(b)
				require.NoError(t, err)
				c := copyOf(b)
				_, err = post(c)
				assert.ErrorIs(t, err, errBatchCopied)
				writes(c, 1, 3)
				_, err = post(c)
				assert.ErrorIs(t, err, errBatchCopied)
				assert.PanicsWithValue(t, errBatchCopied.Error(), func() { c.Fill(1) })
				assert.ErrorIs(t, c.Err(), errBatchCopied)
				_, err = post(new(SendBatch))
				assert.ErrorIs(t, err, errBatchZero)
				writes(b, 1, 2)
			}
			_, err = recv.Post(r)
			require.NoError(t, err)
			_, err = recv.Post(copyOf(r))
			assert.ErrorIs(t, err, errBatchCopied)
		}
	})
	tags, err := NewTagBatch(1, 1)
	require.NoError(t, err)
	assert.ErrorIs(t, copyOf(tags).Err(), errBatchCopied)
	assert.ErrorIs(t, new(TagBatch).Err(), errBatchZero)
	assert.NoError(t, tags.Err())
	require.NoError(t, tags.Close())
}

// copyOf returns a copy that go vet does not notice.
func copyOf[T any](p *T) *T {
	c := new(T)
	*c = *p
	return c
}

// Use of a closed batch panics. It runs in a child process, because an access to unmapped memory would end the process.
func TestUseOfClosedBatch(t *testing.T) {
	if os.Getenv("GOVERBS_TEST_CLOSED") == "" {
		words := append(strings.Fields(os.Getenv("GOVERBS_TEST_EMULATOR")), os.Args[0],
			"-test.run=^TestUseOfClosedBatch$", "-test.v")
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Env = append(os.Environ(), "GOVERBS_TEST_CLOSED=1")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: TestUseOfClosedBatch")
		return
	}
	b, err := NewSendBatch(4, 1, 64)
	require.NoError(t, err)
	recvs, err := NewRecvBatch(4, 1)
	require.NoError(t, err)
	tags, err := NewTagBatch(4, 1)
	require.NoError(t, err)
	c := copyOf(b)
	s, r, add := b.Send(1), recvs.Recv(1), tags.AddTag(1, 2, 3, 4)
	c.Send(1)
	require.NoError(t, b.Close())
	require.NoError(t, recvs.Close())
	require.NoError(t, tags.Close())
	b, recvs, tags = batchOf(s), recvBatchOf(r), nil
	for range 3 {
		goruntime.GC()
		s.SGE(1, 2, 3).Inline([]byte("inline")).Flags(ibv.SEND_FENCE).Signaled().UD(1, 2, 3).XRC(4)
		r.SGE(1, 2, 3).Add(ibv.SGE{})
		add.SGE(1, 2, 3).Signaled().Unexpected(5)
		add.Handle()
		assert.Panics(t, func() { c.Write(1, 2, 3).SGE(4, 5, 6) }, "a recoverable panic")
		for _, n := range []int{0, 1, 4, 5} {
			assert.PanicsWithValue(t, errBatchClosed.Error(), func() { b.Fill(n) })
		}
		assert.ErrorIs(t, b.Err(), errBatchClosed)
		assert.ErrorIs(t, recvs.Err(), errBatchClosed)
		assert.Error(t, c.Err())
	}
}

func batchOf(s SendRequest) *SendBatch     { return s.b }
func recvBatchOf(r RecvRequest) *RecvBatch { return r.b }
