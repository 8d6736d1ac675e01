// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

var seed = flag.Uint64("seed", 1, "seed of random work requests and arguments")

// bench has a device, memory for lists of C and Go, and inline data.
type bench struct {
	stub           *Stub
	device         *Device
	c, other, data *offheap.Mapping
	random         *rand.Rand
}

func newBench(t *testing.T) *bench {
	s := Build(t)
	b := &bench{stub: s, device: s.New(t), random: rand.New(rand.NewPCG(*seed, 4))}
	for _, m := range []**offheap.Mapping{&b.c, &b.other, &b.data} {
		var err error
		*m, err = offheap.Map(256*(128+maxSGE*16), offheap.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { (*m).Close() })
	}
	for i := range b.data.Bytes() {
		b.data.Bytes()[i] = byte(b.random.Uint32())
	}
	s.Reset()
	s.Readable(b.data.Bytes())
	return b
}

// outcome is the result of a post: the returned value, the bad work request, and the device's log.
type outcome struct {
	result, bad int64
	log         []byte
}

const (
	badNull = -1 // an index in an outcome
	badKept = -2
)

// post is struct post of c/post.c.
type post struct {
	object             uint64
	recipes            *recipe
	count              uint64
	memory             unsafe.Pointer
	result, error, bad int64
}

// postC builds and posts in C.
func (b *bench) postC(function string, object uintptr, list []recipe) outcome {
	b.stub.ResetLog()
	clear(b.c.Bytes()[:sizeOf(list)])
	p := &post{object: uint64(object), recipes: &list[0], count: uint64(len(list)),
		memory: unsafe.Pointer(&b.c.Bytes()[0])}
	f := runtime.Function{Name: function}
	if err := f.Slot(b.stub.Symbol(function)).Void(uintptr(unsafe.Pointer(p))); err != nil {
		panic(err)
	}
	return outcome{p.result, p.bad, bytes.Clone(b.stub.RawLog())}
}

func sizeOf(list []recipe) int {
	n := 0
	for i := range list {
		n += 128 + 16*int(list[i].numSGE)
	}
	return n
}

// buildSend builds a list in Go with C's layout: work requests, then SGEs.
func (b *bench) buildSend(list []recipe) *ibv.SendWR {
	clear(b.other.Bytes()[:sizeOf(list)])
	wrs := unsafe.Slice((*ibv.SendWR)(unsafe.Pointer(&b.other.Bytes()[0])), len(list))
	sges := unsafe.Slice((*ibv.SGE)(unsafe.Pointer(&b.other.Bytes()[128*len(list)])), len(list)*maxSGE+1)
	for i := range list {
		list[i].fill(&wrs[i])
		sges = list[i].chain(&wrs[i].SGList, sges)
		if i+1 < len(list) {
			wrs[i].Next = ibv.PtrTo(&wrs[i+1])
		}
	}
	return &wrs[0]
}

func (b *bench) buildRecv(list []recipe) *ibv.RecvWR {
	clear(b.other.Bytes()[:sizeOf(list)])
	wrs := unsafe.Slice((*ibv.RecvWR)(unsafe.Pointer(&b.other.Bytes()[0])), len(list))
	sges := unsafe.Slice((*ibv.SGE)(unsafe.Pointer(&b.other.Bytes()[32*len(list)])), len(list)*maxSGE+1)
	for i := range list {
		wrs[i].WRID, wrs[i].NumSGE = list[i].wrID, int32(list[i].numSGE)
		sges = list[i].chain(&wrs[i].SGList, sges)
		if i+1 < len(list) {
			wrs[i].Next = ibv.PtrTo(&wrs[i+1])
		}
	}
	return &wrs[0]
}

func (c *recipe) chain(list *ibv.Ptr[ibv.SGE], sges []ibv.SGE) []ibv.SGE {
	if c.numSGE > 0 || c.list != 0 {
		*list = ibv.PtrTo(&sges[0])
	}
	return sges[copy(sges, c.sge[:c.numSGE]):]
}

// call3 calls a slot in one of the two ways.
func (b *bench) call3(way runtime.Way, fn ibv.FuncPtr, object, list uintptr, size int) outcome {
	return b.call(list, size, func(bad uintptr) int64 {
		return int64(way.Call3(uintptr(fn), object, list, bad))
	})
}

// call posts a list of work requests with a given size.
func (b *bench) call(list uintptr, size int, post func(bad uintptr) int64) outcome {
	b.stub.ResetLog()
	bad := (*uintptr)(unsafe.Pointer(&b.device.Buffer(0)[0]))
	kept := uintptr(unsafe.Pointer(b.stub.log))
	*bad = kept
	o := outcome{result: post(uintptr(unsafe.Pointer(bad))), bad: badNull, log: b.stub.RawLog()}
	if *bad == kept {
		o.bad = badKept
	} else if *bad != 0 {
		o.bad = int64(*bad-list) / int64(size)
	}
	return o
}

var ways = []runtime.Way{runtime.Blocking, runtime.System}

// sendPosters returns all ways to post send work requests from Go.
func (b *bench) sendPosters() map[string]func([]recipe) outcome {
	all := map[string]func([]recipe) outcome{}
	for _, way := range ways {
		all[way.String()] = func(list []recipe) outcome {
			wr := b.buildSend(list)
			return b.call3(way, b.device.Context.Ops.PostSend, b.device.Address("ibv_qp"), uintptr(unsafe.Pointer(wr)),
				128)
		}
	}
	all["libibverbs"] = func(list []recipe) outcome {
		wr := b.buildSend(list)
		return b.call(uintptr(unsafe.Pointer(wr)), 128, func(bad uintptr) int64 {
			return errnoOf(libibverbs.PostSend(b.device.QP, wr, at[ibv.Ptr[ibv.SendWR]](bad)))
		})
	}
	return all
}

// errnoOf returns the errno of an error.
func errnoOf(err error) int64 {
	var errno runtime.Errno
	errors.As(err, &errno)
	return int64(errno)
}

// same fails the test with a description of the first difference.
func (b *bench) same(t *testing.T, name string, list []recipe, want, got outcome) bool {
	t.Helper()
	if want.result == got.result && want.bad == got.bad && bytes.Equal(want.log, got.log) {
		return true
	}
	message := fmt.Sprintf("seed %d: %s: C returned %d with bad work request %d, Go %d with %d", *seed, name,
		want.result, want.bad, got.result, got.bad)
	if at := differ(want.log, got.log); at >= 0 {
		message += "\n" + describe(list, want.log, got.log, at)
	}
	t.Error(message)
	return false
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// describe names the work request and the member in which two logs of a post differ.
func describe(list []recipe, c, other []byte, at int) string {
	place := fmt.Sprintf("byte %d of the record (C has %d bytes, Go %d)", at, len(c), len(other))
	offset := at - 16 - 3*8
	for i := range list {
		inside := 0
		for _, e := range list[i].sge[:list[i].numSGE] {
			if list[i].flags&uint32(ibv.SEND_INLINE) != 0 {
				inside += int(e.Length)
			}
		}
		if ibv.WROpcode(list[i].opcode) == ibv.WR_TSO && list[i].tail == tailTSO {
			inside += int(list[i].hdrSz)
		}
		size := 128 + 16*int(list[i].numSGE) + inside
		if offset >= 0 && offset < size {
			return fmt.Sprintf("work request %d (%s) differs at byte %d: C has %#x, Go %#x; %s", i, &list[i], offset,
				end(c, at), end(other, at), place)
		}
		offset -= size
	}
	return place
}

func end(b []byte, at int) []byte { return b[min(at, len(b)):min(at+8, len(b))] }

// TestSendShapes compares the lists that Go and C build for every combination of opcode, arm, flags and SGE count.
func TestSendShapes(t *testing.T) {
	b := newBench(t)
	posters := b.sendPosters()
	n := 0
	for list := range shapes {
		recipes := make([]recipe, len(list))
		for i, s := range list {
			recipes[i] = s.values(b.random, b.data.Bytes())
		}
		n += len(list)
		want := b.postC("stub_post_send", b.device.Address("ibv_qp"), recipes)
		for name, post := range posters {
			if !b.same(t, name, recipes, want, post(recipes)) {
				return
			}
		}
	}
	t.Logf("%d work requests, %d ways", n, len(posters))
}

// TestSendRandom compares lists of random length with random values, for every result of the device.
func TestSendRandom(t *testing.T) {
	b := newBench(t)
	posters := b.sendPosters()
	for range 10_000 {
		recipes := make([]recipe, 1+b.random.IntN(24))
		for i := range recipes {
			recipes[i] = randomShape(b.random).values(b.random, b.data.Bytes())
		}
		b.answer("ibv_context_ops.post_send", len(recipes))
		want := b.postC("stub_post_send", b.device.Address("ibv_qp"), recipes)
		for name, post := range posters {
			if !b.same(t, name, recipes, want, post(recipes)) {
				return
			}
		}
	}
}

// answer scripts success, a failure at any work request, or a failure without bad_wr.
func (b *bench) answer(slot string, length int) {
	r := Result{}
	switch b.random.IntN(4) {
	case 0:
		r = Result{Value: 12, Bad: BadAt(b.random.IntN(length))}
	case 1:
		r = Result{Value: 22, Bad: BadNull}
	}
	b.stub.Script(slot, r)
}

// TestRecv is the same for receive requests, on a QP and on an SRQ.
func TestRecv(t *testing.T) {
	b := newBench(t)
	slots := &b.device.Context.Ops
	for _, queue := range []struct {
		function, object, slot string
		fn                     ibv.FuncPtr
		post                   func(wr *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) error
	}{
		{"stub_post_recv", "ibv_qp", "ibv_context_ops.post_recv", slots.PostRecv,
			func(wr *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) error {
				return libibverbs.PostRecv(b.device.QP, wr, bad)
			}},
		{"stub_post_srq_recv", "ibv_srq", "ibv_context_ops.post_srq_recv", slots.PostSRQRecv,
			func(wr *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) error {
				return libibverbs.PostSRQRecv(b.device.SRQ, wr, bad)
			}},
	} {
		object := b.device.Address(queue.object)
		for range 3_000 {
			recipes := make([]recipe, 1+b.random.IntN(24))
			for i := range recipes {
				recipes[i] = shape{sges: b.random.IntN(maxSGE + 1)}.values(b.random, b.data.Bytes())
			}
			b.answer(queue.slot, len(recipes))
			want := b.postC(queue.function, object, recipes)
			for _, way := range ways {
				got := b.call3(way, queue.fn, object, uintptr(unsafe.Pointer(b.buildRecv(recipes))), 32)
				if !b.same(t, queue.slot+" "+way.String(), recipes, want, got) {
					return
				}
			}
			wr := b.buildRecv(recipes)
			got := b.call(uintptr(unsafe.Pointer(wr)), 32, func(bad uintptr) int64 {
				return errnoOf(queue.post(wr, at[ibv.Ptr[ibv.RecvWR]](bad)))
			})
			if !b.same(t, queue.slot+" libibverbs", recipes, want, got) {
				return
			}
		}
	}
}
