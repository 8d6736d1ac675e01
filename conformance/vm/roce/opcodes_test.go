// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// mtu is the path MTU of both devices, over a cable with an MTU of 1500.
const mtu = 1024

// grh is the size of the header before the data in a UD receive.
const grh = 40

const imm = 0xfeedc0de

// sizes are message sizes: less than a packet, one packet, and several.
var sizes = []int{1, mtu, mtu + 1, 5001, 1 << 20}

// TestOperations transfers messages of several sizes with every operation, and compares all memory.
func TestOperations(t *testing.T) {
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD} {
			t.Run(kind.String(), func(t *testing.T) {
				a, b := pair(t, options{kind: kind})
				for _, size := range sizes {
					if kind == ibv.QPT_UD && size > mtu {
						continue
					}
					for _, op := range []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE,
						ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ} {
						if op == ibv.WR_RDMA_READ && kind != ibv.QPT_RC || kind == ibv.QPT_UD && op != ibv.WR_SEND &&
							op != ibv.WR_SEND_WITH_IMM {
							continue
						}
						outer := t
						t.Run(fmt.Sprintf("%v/%d", op, size), func(t *testing.T) {
							for range losses {
								if move(t, a, b, kind, op, size) {
									return
								}
								a, b = pair(outer, options{kind: kind})
							}
							t.Fatal("no message arrived unchanged")
						})
					}
				}
			})
		}
	})
}

// move transfers one message from a to b, or with a read from b to a. It returns false if an unreliable queue pair lost
// the message.
func move(t *testing.T, a, b *end, kind ibv.QPType, op ibv.WROpcode, size int) bool {
	a.t, b.t = t, t
	a.fill(1)
	b.fill(2)
	from, to := a, b
	if op == ibv.WR_RDMA_READ {
		from, to = b, a
	}
	want := slices.Clone(to.mr.Bytes())
	copy(want[margin:], from.mr.Bytes()[margin:margin+size])
	kept := slices.Clone(from.mr.Bytes())
	before := 0
	if kind == ibv.QPT_UD {
		before = grh
	}
	takes := op != ibv.WR_RDMA_WRITE && op != ibv.WR_RDMA_READ
	if takes {
		b.recv(margin-before, size+before)
	}
	remote, rkey := b.mr.SGE(margin, 1).Addr, b.mr.RKey()
	send := func() {
		a.post(func(batch *rdma.SendBatch) (r rdma.SendRequest) {
			switch op {
			case ibv.WR_SEND:
				r = batch.Send(7)
			case ibv.WR_SEND_WITH_IMM:
				r = batch.SendImm(7, ibv.ToBE32(imm))
			case ibv.WR_RDMA_WRITE:
				r = batch.Write(7, remote, rkey)
			case ibv.WR_RDMA_WRITE_WITH_IMM:
				r = batch.WriteImm(7, remote, rkey, ibv.ToBE32(imm))
			default:
				r = batch.Read(7, remote, rkey)
			}
			return r.Add(a.mr.SGE(margin, uint32(size)))
		})
		assert.EqualValues(t, 7, a.done().WRID)
	}
	switch {
	case takes:
		wc, ok := b.transfer(kind, send)
		if !ok {
			return false
		}
		assert.EqualValues(t, size+before, wc.ByteLen)
		if op != ibv.WR_SEND {
			assert.NotZero(t, wc.WCFlags&ibv.WC_WITH_IMM)
			assert.EqualValues(t, imm, wc.ImmData().Host())
		}
		if kind == ibv.QPT_UD {
			assert.Equal(t, a.q.Num(), wc.SrcQP)
			copy(want[margin-before:], to.mr.Bytes()[margin-before:margin]) // IP header
		}
	case kind == ibv.QPT_UC: // the peer gets no completion, so a message is sent after it
		copy(want, a.mr.Bytes()[:1])
		send()
		b.recv(0, 1)
		_, ok := b.transfer(kind, func() {
			a.post(func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(8).Add(a.mr.SGE(0, 1)) })
			a.done()
		})
		if !ok || !bytes.Equal(want, to.mr.Bytes()) {
			return false
		}
	default:
		send()
	}
	require.True(t, bytes.Equal(want, to.mr.Bytes()), "received data differs")
	require.True(t, bytes.Equal(kept, from.mr.Bytes()), "sent data changed")
	return true
}

// TestAtomics checks that each atomic operation changes the peer's memory once and returns the old value.
func TestAtomics(t *testing.T) {
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		a, b := pair(t, options{kind: ibv.QPT_RC})
		word := func(e *end) []byte { return e.mr.Bytes()[margin : margin+8] }
		remote, rkey := b.mr.SGE(margin, 8).Addr, b.mr.RKey()
		has := uint64(1) << 40
		binary.NativeEndian.PutUint64(word(b), has)
		for i, add := range []func(*rdma.SendBatch) rdma.SendRequest{
			func(b *rdma.SendBatch) rdma.SendRequest { return b.FetchAdd(1, remote, rkey, 3) },
			func(b *rdma.SendBatch) rdma.SendRequest { return b.CompareSwap(1, remote, rkey, has+3, 9) },
			func(b *rdma.SendBatch) rdma.SendRequest { return b.CompareSwap(1, remote, rkey, has+3, 10) },
		} {
			a.post(func(batch *rdma.SendBatch) rdma.SendRequest { return add(batch).Add(a.mr.SGE(margin, 8)) })
			a.done()
			assert.Equal(t, []uint64{has, has + 3, 9}[i], binary.NativeEndian.Uint64(word(a)))
			assert.Equal(t, []uint64{has + 3, 9, 9}[i], binary.NativeEndian.Uint64(word(b)))
		}
	})
}
