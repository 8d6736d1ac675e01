// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"testing"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Rig is rig for tests that may import rdma.
type Rig = rig

// NewRig is newRig.
func NewRig(t testing.TB, o Options) *Rig { return newRig(t, o) }

// Pair is pair.
type Pair struct {
	A, B                       *ibv.QP
	ASend, ARecv, BSend, BRecv *ibv.CQ
}

// PairOf is pair, with capacities.
func (r *rig) PairOf(kind ibv.QPType, caps ibv.QPCap) Pair {
	p := Pair{ASend: r.cq(0, 256), ARecv: r.cq(0, 256), BSend: r.cq(1, 256), BRecv: r.cq(1, 256)}
	p.A, p.B = r.qp(0, kind, caps, p.ASend, p.ARecv), r.qp(1, kind, caps, p.BSend, p.BRecv)
	r.connect(p.A, 1, p.B.QPNum)
	r.connect(p.B, 0, p.A.QPNum)
	return p
}

// Memory is registered memory and its local key.
func (r *rig) Memory(device, size int) ([]byte, uint32) {
	b := r.buffer(device, size, everything)
	return b.bytes, b.mr.LKey
}

// Hold keeps the packets of a fabric from being sent until release, as a goroutine does that sends others.
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
