// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestRecords checks that a call in C is recorded and returns the scripted result.
func TestRecords(t *testing.T) {
	s := Build(t)
	d := s.New(t)
	s.Reset()
	wr := at[ibv.SendWR](uintptr(unsafe.Pointer(&d.Buffer(0)[0])))
	*wr = ibv.SendWR{WRID: 7, Opcode: ibv.WR_SEND}
	bad := at[uint64](uintptr(unsafe.Pointer(&d.Buffer(1)[0])))
	s.Script("ibv_context_ops.post_send", Result{Value: 12, Errno: 5, Bad: BadAt(0)})
	result, errno := s.Call("ibv_post_send", uint64(d.Address("ibv_qp")), uint64(uintptr(unsafe.Pointer(wr))),
		uint64(uintptr(unsafe.Pointer(bad))))
	assert.EqualValues(t, 12, result)
	assert.EqualValues(t, 5, errno)
	assert.Equal(t, uint64(uintptr(unsafe.Pointer(wr))), *bad)
	log := s.Log()
	if assert.Len(t, log, 1) {
		assert.Equal(t, "ibv_context_ops.post_send", log[0].Name)
		assert.Equal(t, []uint64{uint64(d.Address("ibv_qp")), 1, 1}, log[0].Args)
		assert.Equal(t, unsafe.Slice((*byte)(unsafe.Pointer(wr)), 128), log[0].Contents)
	}
	result, _ = s.Call("ibv_alloc_pd", uint64(d.Address("ibv_context")))
	assert.EqualValues(t, s.Symbol("stub_object"), result)
	assert.Equal(t, "ibv_alloc_pd", s.Log()[1].Name)
}
