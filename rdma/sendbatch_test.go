// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
)

// recipe describes a work request of any opcode with any attributes.
type recipe struct {
	kind, bytes int
	a, b, c     uint64
	x, y        uint32
	entries     int
	ud, xrc     bool
	flags       ibv.SendFlags
}

func drawRecipe(t *rapid.T) recipe {
	return recipe{
		kind: rapid.IntRange(0, 12).Draw(t, "kind"), bytes: rapid.IntRange(0, 8).Draw(t, "bytes"),
		a: rapid.Uint64().Draw(t, "a"), b: rapid.Uint64().Draw(t, "b"), c: rapid.Uint64().Draw(t, "c"),
		x: rapid.Uint32().Draw(t, "x"), y: rapid.Uint32().Draw(t, "y"),
		entries: rapid.IntRange(0, 2).Draw(t, "entries"), ud: rapid.Bool().Draw(t, "ud"),
		xrc:   rapid.Bool().Draw(t, "xrc"),
		flags: ibv.SendFlags(rapid.Uint32().Draw(t, "flags")),
	}
}

func (c recipe) append(b *SendBatch, id uint64) {
	var r SendRequest
	switch c.kind {
	case 0:
		r = b.Send(id)
	case 1:
		r = b.SendImm(id, ibv.BE32(c.x))
	case 2:
		r = b.SendInv(id, c.x)
	case 3:
		r = b.Write(id, c.a, c.x)
	case 4:
		r = b.WriteImm(id, c.a, c.x, ibv.BE32(c.y))
	case 5:
		r = b.Read(id, c.a, c.x)
	case 6:
		r = b.CompareSwap(id, c.a, c.x, c.b, c.c)
	case 7:
		r = b.FetchAdd(id, c.a, c.x, c.b)
	case 8:
		r = b.LocalInv(id, c.x)
	case 9:
		r = b.BindMW(id, ibv.Ptr[ibv.MW](c.a), c.x, ibv.MWBindInfo{Addr: c.b, Length: c.c})
	case 10:
		r = b.TSO(id, make([]byte, c.bytes), uint16(c.x))
	case 11:
		r = b.Driver(id)
		b.WR(r.Index()).WR.Atomic().Swap = c.a
	case 12:
		r = b.Write(id, c.a, c.x).Inline(make([]byte, c.bytes))
	}
	for range c.entries {
		r.SGE(c.b, c.y, c.x)
	}
	if c.ud {
		r.UD(ibv.Ptr[ibv.AH](c.a), c.x, c.y)
	}
	if c.xrc {
		r.XRC(c.y)
	}
	r.Flags(c.flags)
}

// relative returns the bytes of the requests, with addresses within the batch's memory relative to its start.
func relative(b *SendBatch) (all [][16]uint64) {
	for _, w := range b.wrs[:b.n] {
		list := entries(w.SGList, w.NumSGE)
		w.Next = ibv.Ptr[ibv.SendWR](boolTo(w.Next != 0))
		w.SGList -= ibv.Ptr[ibv.SGE](b.first)
		if w.Opcode == ibv.WR_TSO {
			w.TSO().Hdr -= b.first
		}
		var words [16]uint64
		*(*ibv.SendWR)(unsafe.Pointer(&words)) = w
		all = append(all, words)
		for _, s := range list {
			if s.Addr-uint64(b.first) < uint64(len(b.mapping.Bytes())) {
				s.Addr -= uint64(b.first)
			}
			all = append(all, [16]uint64{s.Addr, uint64(s.Length)<<32 | uint64(s.LKey)})
		}
	}
	return all
}

func boolTo(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A reused batch builds the same list as a new one: no byte of its former contents remains.
func TestBatchReuse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used, err := NewSendBatch(4, 3, 16)
		require.NoError(t, err)
		defer used.Close()
		for range rapid.IntRange(1, 3).Draw(t, "earlier lists") {
			filled := scribble(used, rapid.IntRange(0, 4).Draw(t, "filled"))
			for i := range rapid.IntRange(0, 4).Draw(t, "length") {
				if filled+i < used.Cap() {
					drawRecipe(t).append(used, uint64(i))
				}
			}
			used.Reset()
		}
		fresh, err := NewSendBatch(4, 3, 16)
		require.NoError(t, err)
		defer fresh.Close()
		for i := range rapid.IntRange(1, 4).Draw(t, "length") {
			c := drawRecipe(t)
			c.append(used, uint64(i))
			c.append(fresh, uint64(i))
		}
		require.NoError(t, used.Err())
		require.Equal(t, relative(fresh), relative(used))
	})
}

// scribble fills a batch and writes to every field that the caller may set.
func scribble(b *SendBatch, n int) int {
	wrs, sges := b.Fill(n)
	for i := range wrs {
		w := &wrs[i]
		next, list := w.Next, w.SGList
		all := unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Sizeof(*w))
		for k := range all {
			all[k] = ^byte(i)
		}
		w.Next, w.SGList = next, list
		w.NumSGE, w.Opcode = 1, ibv.WR_RDMA_WRITE
	}
	for i := range sges {
		sges[i] = ibv.SGE{Addr: ^uint64(0), Length: 1, LKey: 2}
	}
	return n
}

// Fill returns zeroed requests. After another Fill of the same length, it returns that call's requests.
func TestFill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used, err := NewSendBatch(4, 3, 16)
		require.NoError(t, err)
		defer used.Close()
		fresh, err := NewSendBatch(4, 3, 16)
		require.NoError(t, err)
		defer fresh.Close()
		n, before := rapid.IntRange(0, 4).Draw(t, "length"), -1
		t.Repeat(map[string]func(*rapid.T){
			"fill": func(t *rapid.T) { before = scribble(used, rapid.IntRange(0, 4).Draw(t, "other length")) },
			"append": func(t *rapid.T) {
				if used.Len() < used.Cap() {
					before = -1
					drawRecipe(t).append(used, 1)
				}
			},
			"reset": func(*rapid.T) { before = -1; used.Reset() },
		})
		if before == n {
			words := relative(used)
			used.Fill(n)
			require.Equal(t, words, relative(used))
			return
		}
		wrs, sges := used.Fill(n)
		fresh.Fill(n)
		require.Len(t, wrs, n)
		require.Len(t, sges, 3*n)
		require.Equal(t, n, used.Len())
		require.Equal(t, relative(fresh), relative(used))
	})
}

// After Reset, Fill does not return the requests of the Fill before it.
func TestFillAfterReset(t *testing.T) {
	b := sendBatch(t, 2, 1, 0)
	b.Fill(2)
	b.Reset()
	b.Write(1, 2, 3).SGE(4, 5, 6)
	b.Send(7)
	wrs, sges := b.Fill(2)
	for i := range wrs {
		assert.Equal(t, ibv.SendWR{Next: wrs[i].Next, SGList: wrs[i].SGList, NumSGE: 1}, wrs[i])
		assert.Zero(t, sges[i])
	}
}

func TestFillPosts(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(64, 2, 0))
	b := sendBatch(t, 4, 2, 0)
	writes(b, 0, 3)
	for range 2 {
		wrs, sges := b.Fill(3)
		for i := range wrs {
			wrs[i].WRID, wrs[i].Opcode, wrs[i].SendFlags = uint64(i), ibv.WR_RDMA_READ, ibv.SEND_SIGNALED
			wrs[i].WR.RDMA().RemoteAddr = 7
			sges[2*i], sges[2*i+1] = ibv.SGE{Addr: 1, Length: 2}, ibv.SGE{Addr: uint64(i), Length: 4}
		}
		posted, err := q.Post(b)
		require.NoError(t, err)
		assert.Equal(t, 3, posted)
		list := d.sends[len(d.sends)-1]
		require.Len(t, list, 3)
		for i, w := range list {
			assert.EqualValues(t, i, w.WRID)
			assert.Equal(t, []ibv.SGE{{Addr: 1, Length: 2}, {Addr: uint64(i), Length: 4}}, entries(w.SGList, w.NumSGE))
		}
	}
	assert.Panics(t, func() { b.Fill(5) })
	assert.Panics(t, func() { b.Fill(-1) })
	assert.Equal(t, 3, b.Len(), "the batch is unchanged")
}

func TestBatchRoom(t *testing.T) {
	b := sendBatch(t, 2, 1, 4)
	assert.Equal(t, 2, b.Cap())
	b.Write(1, 0, 0)
	b.Write(2, 0, 0)
	require.NoError(t, b.Err())
	b.Write(3, 0, 0).SGE(1, 2, 3)
	b.Write(4, 0, 0)
	assert.Equal(t, 2, b.Len())
	assert.EqualError(t, b.Err(),
		"the batch has room for 2 work requests, not for 4: cannot allocate memory")
	b.Reset()
	assert.NoError(t, b.Err())

	b.Send(1).SGE(1, 2, 3).SGE(4, 5, 6)
	assert.EqualError(t, b.Err(),
		"no room for another entry: the batch has 1 for each work request: invalid argument")
	b.Reset()
	assert.NoError(t, b.Err())

	b.Send(1).Inline([]byte("12345"))
	assert.EqualError(t, b.Err(), "WR 0: no room for 5 inline bytes after 0: the batch has 4 for "+
		"each work request: invalid argument")
	b.Reset()
	b.TSO(1, []byte("1234"), 9).Inline([]byte("5"))
	assert.EqualError(t, b.Err(), "WR 0: no room for 1 inline bytes after 4: the batch has 4 for "+
		"each work request: invalid argument")

	require.NoError(t, b.Close())
	b.Write(1, 2, 3)
	assert.Error(t, b.Err(), "appending to a closed batch fails")
	assert.NoError(t, b.Close())
	assert.Panics(t, func() { b.WR(0) })

	for _, sizes := range [][3]int{{0, 1, 1}, {1, -1, 0}, {1, 0, -1}} {
		_, err := NewSendBatch(sizes[0], sizes[1], sizes[2])
		assert.Error(t, err)
	}
	r := recvBatch(t, 1, 1)
	r.Recv(1).SGE(1, 2, 3).SGE(4, 5, 6)
	assert.EqualError(t, r.Err(),
		"no room for another entry: the batch has 1 for each work request: invalid argument")
	r.Recv(2)
	assert.EqualError(t, r.Err(),
		"the batch has room for 1 work requests, not for 2: cannot allocate memory")
	r.Reset()
	assert.NoError(t, r.Err())
}

func TestInlineAndHeaderAreCopies(t *testing.T) {
	b := sendBatch(t, 2, 2, 16)
	header, data := []byte("head"), []byte("body")
	b.TSO(1, header, 1000).Inline(data)
	copy(header, "else")
	copy(data, "else")
	w := b.WR(0)
	assert.Equal(t, "head", string(unsafe.Slice((*byte)(unsafe.Pointer(ibv.Ptr[byte](w.TSO().Hdr).Deref())),
		w.TSO().HdrSz)))
	s := b.SGEs(0)[0]
	assert.Equal(t, "body", string(unsafe.Slice(ibv.Ptr[byte](s.Addr).Deref(), s.Length)))
	assert.Equal(t, ibv.SEND_INLINE, w.SendFlags)
	assert.EqualValues(t, 1000, w.TSO().MSS)
}

func TestWorkRequestsAreAlignedToCacheLines(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("on 32-bit machines a work request is smaller than two cache lines")
	}
	b := sendBatch(t, 3, 1, 1)
	for i := range 3 {
		b.Send(0)
		assert.Zero(t, uintptr(unsafe.Pointer(b.WR(i)))%64)
	}
}

func TestClosedBatches(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	send := sendQueue(t, d, options(16, 1, 0))
	recv, err := NewRecvQueue(&d.qp, options(16, 1, 0))
	require.NoError(t, err)
	b, r := writes(sendBatch(t, 2, 1, 16), 1, 2), recvBatch(t, 2, 1)
	r.Recv(1)
	require.NoError(t, b.Close())
	require.NoError(t, r.Close())
	for range 3 {
		_, err = send.Post(b)
		assert.ErrorIs(t, err, errBatchClosed)
		_, err = recv.Post(r)
		assert.ErrorIs(t, err, errBatchClosed)
		b.Reset()
		r.Reset()
		b.Send(1).SGE(1, 2, 3)
		b.Send(1).Inline([]byte("1"))
		b.TSO(1, []byte("1"), 1)
		r.Recv(1).SGE(1, 2, 3)
	}
	assert.Panics(t, func() { b.Fill(1) })
	assert.Empty(t, d.sends)
	assert.Empty(t, d.recvs)
}
