// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// fill sets every field of a message to a distinct value. A field of an unsupported kind fails the test.
func fill(t *testing.T, v reflect.Value, next *uint64) {
	for i := range v.NumField() {
		*next += 3
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			fill(t, f, next)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			f.SetUint(*next)
		case reflect.Int32:
			f.SetInt(int64(*next))
		case reflect.Array:
			for j := range f.Len() {
				f.Index(j).SetUint(*next + uint64(j))
			}
		case reflect.Slice:
			if !v.Type().Field(i).IsExported() { // payload of a clone
				continue
			}
			require.IsType(t, []mem.Segment(nil), f.Interface(), "%s", v.Type().Field(i).Name)
		default:
			require.FailNow(t, "a message must not contain pointers", "%s is a %v", v.Type().Field(i).Name, f.Kind())
		}
	}
}

// TestBytes: encoding and decoding a message preserves every field and the payload.
func TestBytes(t *testing.T) {
	first, second := []byte("the pay"), []byte("load")
	segments := []mem.Segment{{Base: mem.AddressOf(&first[0]), Length: 7}, {},
		{Base: mem.AddressOf(&second[0]), Length: 4}}
	payload := func(s []mem.Segment) string {
		require.Len(t, s, 1)
		return string(mem.List[byte](s[0].Base, int(s[0].Length)))
	}
	next := uint64(0)
	var m, gotM Request
	fill(t, reflect.ValueOf(&m).Elem(), &next)
	m.Payload, m.Opcode, m.Length = segments, ibv.WR_RDMA_WRITE_WITH_IMM, 11
	b := m.Append(nil)
	require.NoError(t, gotM.Parse(b))
	assert.Equal(t, "the payload", payload(gotM.Payload))
	m.Payload, gotM.Payload = nil, nil
	assert.Equal(t, m, gotM)
	assert.Len(t, m.Append(nil), requestSize)
	assert.Error(t, gotM.Parse(b[:requestSize-1]))

	var a, gotA Answer
	fill(t, reflect.ValueOf(&a).Elem(), &next)
	a.Data = segments
	b = a.Append(nil)
	require.NoError(t, gotA.Parse(b))
	assert.Equal(t, "the payload", payload(gotA.Data))
	a.Data, gotA.Data = nil, nil
	assert.Equal(t, a, gotA)
	assert.Len(t, a.Append(nil), answerSize)
	assert.Error(t, gotA.Parse(b[:answerSize-1]))
}

// TestLengthMatchesPayload: a request whose length differs from its payload is rejected, because keys are checked for
// the length, and the payload is copied.
func TestLengthMatchesPayload(t *testing.T) {
	payload := make([]byte, 64)
	m := Request{Opcode: ibv.WR_RDMA_WRITE, Length: 64, Packets: 1,
		Payload: []mem.Segment{{Base: mem.AddressOf(&payload[0]), Length: 64}}}
	var got Request
	assert.NoError(t, got.Parse(m.Append(nil)))
	for _, length := range []uint64{0, 8, 65} {
		m.Length = length
		assert.ErrorIs(t, got.Parse(m.Append(nil)), errLength)
	}
	m.Opcode, m.Length = ibv.WR_RDMA_READ, 64
	assert.ErrorIs(t, got.Parse(m.Append(nil)), errLength, "a read request has no payload")
}

// TestClones: a clone is unaffected when its original and the memory of the payload are reused.
func TestClones(t *testing.T) {
	b := []byte("unchanged")
	of := []mem.Segment{{Base: mem.AddressOf(&b[0]), Length: 3}, {}, {Base: mem.AddressOf(&b[3]), Length: 6}}
	m, a := Request{PSN: 7, Payload: of}, Answer{PSN: 7, Data: of}
	keptM, keptA := m.Clone(), a.Clone()
	copy(b, "something")
	clear(of)
	m.PSN, a.PSN = 8, 8
	for _, kept := range [][]mem.Segment{keptM.Payload, keptA.Data} {
		require.Len(t, kept, 1)
		runtime.GC()
		assert.Equal(t, "unchanged", string(mem.List[byte](kept[0].Base, int(kept[0].Length))))
	}
	assert.EqualValues(t, 7, keptM.PSN)
	assert.EqualValues(t, 7, keptA.PSN)
	assert.Empty(t, (&Request{}).Clone().Payload)
}
