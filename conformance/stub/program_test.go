// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"bytes"
	"encoding/binary"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime/program"
)

// builderCall is a call between ibv_wr_start and ibv_wr_complete, with the values stored in the QP before it.
type builderCall struct {
	function, slot string
	args           []uint64
	stores         bool
	wrID           uint64
	wrFlags        uint32
}

// builders are the inline functions of struct ibv_qp_ex except those at the ends of the region.
func builders() []string {
	var all []string
	for _, f := range ibv.Functions {
		if f.Inline != nil && strings.HasPrefix(f.Inline.Slot, "ibv_qp_ex.wr_") &&
			!slices.Contains([]string{"ibv_wr_start", "ibv_wr_complete", "ibv_wr_abort"}, f.Name) {
			all = append(all, f.Name)
		}
	}
	return all
}

func (b *bench) builderCall(name string) builderCall {
	f := functions()[name]
	c := builderCall{function: name, slot: f.Inline.Struct + "." + f.Inline.Slot, stores: b.random.IntN(2) == 0,
		wrID: b.random.Uint64(), wrFlags: b.random.Uint32N(32)}
	lengths := uint64(0)
	for i, p := range f.Params {
		base := uint64(uintptr(unsafe.Pointer(&b.data.Bytes()[4096*i])))
		switch {
		case i == 0:
			c.args = append(c.args, uint64(b.device.Address("ibv_qp_ex")))
		case strings.Contains(p.Type, "*"):
			c.args = append(c.args, base)
		// recorded contents must exist
		case strings.HasPrefix(p.Name, "num_") || p.Name == "length" || p.Name == "hdr_sz":
			lengths = b.random.Uint64N(20)
			c.args = append(c.args, lengths)
		default:
			c.args = append(c.args, register(p.Type, number(b.random))) // a program passes registers unchanged
		}
	}
	if name == "ibv_wr_set_inline_data_list" {
		for i := range lengths { // existing buffers
			at := b.data.Bytes()[4096*2+16*i:]
			binary.NativeEndian.PutUint64(at, uint64(uintptr(unsafe.Pointer(&b.data.Bytes()[0])))+b.random.Uint64N(512))
			binary.NativeEndian.PutUint64(at[8:], b.random.Uint64N(64))
		}
	}
	return c
}

// register returns the register representation of a number of a C type, if the machine's convention defines one.
func register(spelled string, v uint64) uint64 {
	switch spelled {
	case "uint8_t":
		return uint64(uint8(v))
	case "uint16_t":
		return uint64(uint16(v))
	case "uint32_t", "__be32":
		if goruntime.GOARCH == "riscv64" || goruntime.GOARCH == "loong64" {
			return uint64(int32(v)) // sign-extended from 32 bits, even if unsigned
		}
		return uint64(uint32(v))
	case "uint64_t", "size_t":
		return v
	}
	panic("a parameter of type " + spelled)
}

// TestBuilderRegion checks that work requests between ibv_wr_start and ibv_wr_complete or ibv_wr_abort, as one program,
// make the same calls as C.
func TestBuilderRegion(t *testing.T) {
	b := newBench(t)
	all := builders()
	require.Greater(t, len(all), 15)
	created := map[string]int{}
	for range 500 {
		list := []builderCall{{function: "ibv_wr_start", slot: "ibv_qp_ex.wr_start",
			args: []uint64{uint64(b.device.Address("ibv_qp_ex"))}}}
		for range b.random.IntN(40) {
			c := b.builderCall(all[b.random.IntN(len(all))])
			if !b.stub.Has(c.slot) {
				continue
			}
			created[c.function]++
			list = append(list, c)
		}
		last := "complete"
		if b.random.IntN(4) == 0 {
			last = "abort"
		}
		list = append(list, builderCall{function: "ibv_wr_" + last, slot: "ibv_qp_ex.wr_" + last, args: list[0].args})
		answer := []uint64{0, 12}[b.random.IntN(2)]
		b.stub.Script("ibv_qp_ex.wr_complete", Result{Value: answer})

		b.stub.ResetLog()
		b.device.QPEx.WRID, b.device.QPEx.WRFlags = 0, 0
		var result uint64
		for _, c := range list {
			if c.stores {
				b.device.QPEx.WRID, b.device.QPEx.WRFlags = c.wrID, ibv.SendFlags(c.wrFlags)
			}
			result, _ = b.stub.Call(c.function, c.args...)
		}
		want := bytes.Clone(b.stub.RawLog())
		wantNext := [2]uint64{b.device.QPEx.WRID, uint64(b.device.QPEx.WRFlags)}

		var p program.Program
		for _, c := range list {
			if c.stores {
				p.Store(uintptr(unsafe.Pointer(&b.device.QPEx.WRID)), 8, c.wrID)
				p.Store(uintptr(unsafe.Pointer(&b.device.QPEx.WRFlags)), 4, uint64(c.wrFlags))
			}
			p.Call(*b.device.slot(c.slot), c.args...)
		}
		for _, way := range ways {
			b.device.QPEx.WRID, b.device.QPEx.WRFlags = 0, 0
			b.stub.ResetLog()
			got := p.Run(way)
			if last == "complete" {
				assert.EqualValues(t, result, got, "%v", way)
			}
			require.Equal(t, wantNext, [2]uint64{b.device.QPEx.WRID, uint64(b.device.QPEx.WRFlags)}, "%v", way)
			if got := b.stub.RawLog(); !bytes.Equal(want, got) {
				require.Equal(t, b.stub.decode(want), b.stub.decode(got), "seed %d: %v", *seed, way)
			}
		}
	}
	for _, name := range all {
		if b.stub.Has("ibv_qp_ex." + strings.TrimPrefix(name, "ibv_")) {
			assert.NotZero(t, created[name], "%s was never called", name)
		}
	}
}
