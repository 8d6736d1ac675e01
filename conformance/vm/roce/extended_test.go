// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestSendInvalidate checks that a send with invalidate invalidates the key of a memory window of the receiver, and
// that the receiver's completion reports the key.
func TestSendInvalidate(t *testing.T) {
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		a, b := pair(t, options{kind: ibv.QPT_RC})
		mw, err := b.q.PD().AllocMW(ibv.MW_TYPE_2)
		keep(t, mw, err)
		remote := b.mr.SGE(margin, 1).Addr
		for _, size := range sizes {
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				a.t, b.t = t, t
				a.fill(1)
				b.fill(2)
				key := mw.NextRKey()
				b.post(func(batch *rdma.SendBatch) rdma.SendRequest {
					return batch.BindMW(5, mw.Ptr(), key, ibv.MWBindInfo{MR: b.mr.Ptr(), Addr: remote, Length: 1,
						MWAccessFlags: ibv.ACCESS_REMOTE_WRITE})
				})
				b.done()
				mw.SetRKey(key)
				want := slices.Clone(b.mr.Bytes())
				copy(want[margin:], a.mr.Bytes()[margin:margin+size])
				a.post(func(batch *rdma.SendBatch) rdma.SendRequest {
					return batch.Write(6, remote, key).Add(a.mr.SGE(0, 1))
				})
				a.done()
				require.Equal(t, a.mr.Bytes()[0], b.mr.Bytes()[margin], "the window is one")
				b.recv(margin, size)
				a.post(func(batch *rdma.SendBatch) rdma.SendRequest {
					return batch.SendInv(7, key).Add(a.mr.SGE(margin, uint32(size)))
				})
				a.done()
				wc := b.done()
				assert.EqualValues(t, size, wc.ByteLen)
				if !b.kernel { // Soft-RoCE reports the key without the flag
					assert.NotZero(t, wc.WCFlags&ibv.WC_WITH_INV)
				}
				assert.Equal(t, key, *wc.InvalidatedRKey())
				require.True(t, bytes.Equal(want, b.mr.Bytes()), "received data differs")
			})
		}
		a.t, b.t = t, t
		a.post(func(batch *rdma.SendBatch) rdma.SendRequest {
			return batch.Write(8, remote, mw.RKey()).Add(a.mr.SGE(0, 1))
		})
		wc := a.completion()
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, wc.Status, "the key is invalid")
	})
}

// hasFlush skips tests of operations that Soft-RoCE supports only since Linux 6.2.
func hasFlush(t *testing.T) {
	t.Helper()
	if testbed.Kernel(t) == "6.1" {
		t.Skip("Soft-RoCE of 6.1 has no FLUSH and no ATOMIC_WRITE")
	}
}

const flushes = ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_FLUSH | ibv.QP_EX_WITH_ATOMIC_WRITE

// TestFlush checks that data written before a flush is in memory when the flush completes.
func TestFlush(t *testing.T) {
	hasFlush(t)
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		a, b := pair(t, options{kind: ibv.QPT_RC, ops: flushes})
		for _, size := range sizes {
			for _, level := range []ibv.SelectivityLevel{ibv.FLUSH_RANGE, ibv.FLUSH_MR} {
				t.Run(fmt.Sprintf("%d/%d", level, size), func(t *testing.T) {
					a.t, b.t = t, t
					a.fill(byte(level) + 1)
					want := slices.Clone(b.mr.Bytes())
					copy(want[margin:], a.mr.Bytes()[margin:margin+size])
					remote, rkey := b.mr.SGE(margin, 1).Addr, b.mr.RKey()
					a.run(func(p *rdma.WRProgram) {
						p.Write(1, remote, rkey).Add(a.mr.SGE(margin, uint32(size)))
						p.Flush(2, remote, rkey, uint64(size), uint8(ibv.FLUSH_GLOBAL), uint8(level)).Signaled()
					})
					wc := a.done()
					assert.EqualValues(t, 2, wc.WRID)
					assert.Equal(t, ibv.WC_FLUSH, wc.Opcode)
					require.True(t, bytes.Equal(want, b.mr.Bytes()), "data is missing")
				})
			}
		}
	})
}

// TestAtomicWrite checks that exactly eight bytes are written atomically.
func TestAtomicWrite(t *testing.T) {
	hasFlush(t)
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		a, b := pair(t, options{kind: ibv.QPT_RC, ops: flushes})
		b.fill(2)
		want := slices.Clone(b.mr.Bytes())
		for i := range 3 {
			value := [8]byte{byte(i), 1, 2, 3, 4, 5, 6, 0xfe}
			copy(want[margin+8*i:], value[:])
			a.run(func(p *rdma.WRProgram) {
				p.AtomicWrite(uint64(i), b.mr.SGE(uint64(margin+8*i), 8).Addr, b.mr.RKey(), value).Signaled()
			})
			wc := a.done()
			assert.EqualValues(t, i, wc.WRID)
			assert.Equal(t, ibv.WC_ATOMIC_WRITE, wc.Opcode)
			require.True(t, bytes.Equal(want, b.mr.Bytes()))
		}
	})
}

// TestExtendedErrors checks the requester's status if one of these operations is not allowed.
func TestExtendedErrors(t *testing.T) {
	hasFlush(t)
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		for _, c := range []struct {
			name  string
			build func(p *rdma.WRProgram, remote uint64, rkey uint32) rdma.WRRequest
			want  ibv.WCStatus
		}{
			{"flush with a wrong key", func(p *rdma.WRProgram, remote uint64, rkey uint32) rdma.WRRequest {
				return p.Flush(1, remote, rkey^0x5500, 8, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE))
			}, ibv.WC_REM_ACCESS_ERR},
			{"flush beyond the region", func(p *rdma.WRProgram, remote uint64, rkey uint32) rdma.WRRequest {
				return p.Flush(1, remote, rkey, memory, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE))
			}, ibv.WC_REM_ACCESS_ERR},
			{"flush that the queue pair does not allow", func(p *rdma.WRProgram, remote uint64, rkey uint32,
			) rdma.WRRequest {
				return p.Flush(1, remote, rkey, 8, uint8(ibv.FLUSH_PERSISTENT), uint8(ibv.FLUSH_RANGE))
			}, ibv.WC_REM_INV_REQ_ERR},
			{"atomic write with a wrong key", func(p *rdma.WRProgram, remote uint64, rkey uint32) rdma.WRRequest {
				return p.AtomicWrite(1, remote, rkey^0x5500, [8]byte{})
			}, ibv.WC_REM_ACCESS_ERR},
		} {
			t.Run(c.name, func(t *testing.T) {
				a, b := pair(t, options{kind: ibv.QPT_RC, ops: flushes})
				a.run(func(p *rdma.WRProgram) { c.build(p, b.mr.SGE(margin, 8).Addr, b.mr.RKey()).Signaled() })
				wc := a.completion()
				assert.Equal(t, c.want, wc.Status)
			})
		}
	})
}
