// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"testing"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Testbed exports testbed to package device_test, which can import rdma.
type Testbed = testbed

// NewTestbed calls newTestbed.
func NewTestbed(t testing.TB, o Options) *Testbed { return newTestbed(t, o) }

// Pair is pair with exported fields.
type Pair struct {
	A, B                       *ibv.QP
	ASend, ARecv, BSend, BRecv *ibv.CQ
}

// PairOf connects a pair of queue pairs with the given capacities.
func (r *testbed) PairOf(kind ibv.QPType, caps ibv.QPCap) Pair {
	p := Pair{ASend: r.cq(0, 256), ARecv: r.cq(0, 256), BSend: r.cq(1, 256), BRecv: r.cq(1, 256)}
	p.A, p.B = r.qp(0, kind, caps, p.ASend, p.ARecv), r.qp(1, kind, caps, p.BSend, p.BRecv)
	r.connect(p.A, 1, p.B.QPNum)
	r.connect(p.B, 0, p.A.QPNum)
	return p
}

// Memory registers memory on a device, and returns it with its local key.
func (r *testbed) Memory(device, size int) ([]byte, uint32) {
	b := r.buffer(device, size, allAccess)
	return b.bytes, b.mr.LKey
}

// Hold delays the packets of a fabric until release is called, like a goroutine that is sending other packets.
func Hold(f *Fabric) (release func()) {
	f.Mu.Lock()
	all := f.Outer.Links()
	f.Mu.Unlock()
	for _, l := range all {
		l.Await()
		f.Mu.Lock()
		l.Turn()
		f.Mu.Unlock()
	}
	return func() {
		for _, l := range all {
			l.Flush()
		}
	}
}
