// SPDX-License-Identifier: BSD-2-Clause

// Package stub builds a fake provider: a shared library, compiled from C against the real headers, whose slots and
// exported functions record their calls and return what a test has scripted. It stands in for a device, libibverbs,
// librdmacm and the providers' libraries, so that calls from Go and from C can be compared byte by byte.
package stub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/verbsabi"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// Stub is the opened library. There is one in a process: all devices share its log and its scripts.
type Stub struct {
	Path    string // of the shared library, for a runtime.Library
	Release string // of the headers that it was compiled with
	library runtime.Library
	names   []string
	ids     map[string]uint32
	log     *clog
	records *offheap.Mapping
	scripts []script
	places  map[string]place
	size    int // size of a device
	keep    [][]byte
}

type place struct{ offset, size uintptr }

// clog is struct stub_log.
type clog struct{ recording, capacity, used, calls, from, to, records uint64 }

// logBytes is the capacity of the log between two Resets.
const logBytes = 16 << 20

var opened struct {
	sync.Once
	stub *Stub
	err  error
}

// Build compiles and opens the stub, once in a process. Without a C compiler or rdma-core's headers, it skips the test.
func Build(t testing.TB) *Stub {
	t.Helper()
	opened.Do(func() { opened.stub, opened.err = build() })
	if errors.Is(opened.err, verbsabi.ErrNoCompiler) || errors.Is(opened.err, verbsabi.ErrNoHeaders) {
		t.Skip(opened.err)
	}
	require.NoError(t, opened.err)
	return opened.stub
}

func build() (*Stub, error) {
	path, release, names, err := compile()
	if err != nil {
		return nil, err
	}
	s := &Stub{Path: path, Release: release, names: names, ids: map[string]uint32{}, places: map[string]place{},
		library: runtime.Library{Name: "stub", SOName: path}}
	for i, name := range names {
		s.ids[name] = uint32(i)
	}
	if err := s.library.Open(); err != nil {
		return nil, err
	}
	if s.records, err = offheap.Map(logBytes, offheap.Options{}); err != nil {
		return nil, err
	}
	s.log = at[clog](s.Symbol("stub_log"))
	s.log.capacity, s.log.records = logBytes, uint64(s.records.Address())
	s.scripts = unsafe.Slice(at[script](s.Symbol("stub_scripts")), len(names))
	s.size = int(*at[uint64](s.Symbol("stub_world_size")))
	for _, p := range unsafe.Slice(at[struct{ name, offset, size uintptr }](s.Symbol("stub_places")), 1<<10) {
		if p.name == 0 {
			break
		}
		s.places[cstring(p.name)] = place{p.offset, p.size}
	}
	s.Reset()
	return s, nil
}

// Symbol returns the address of a function or a variable of the library: "stub_object", "call_ibv_post_send",
// "ibv_create_qp". It panics if the symbol does not exist; see [Stub.Has].
func (s *Stub) Symbol(name string) uintptr {
	address, err := s.library.Symbol(name)
	if err != nil || address == 0 {
		panic(fmt.Sprintf("the stub, compiled with the headers of %s, has no %s (%v)", s.Release, name, err))
	}
	return address
}

// Has reports whether the stub's headers have a slot ("ibv_qp_ex.wr_flush") or an exported function.
func (s *Stub) Has(name string) bool { _, ok := s.ids[name]; return ok }

// HasCall reports whether the stub's headers have a function, inline or exported, that Call can call.
func (s *Stub) HasCall(function string) bool {
	address, err := s.library.Symbol("call_" + function)
	return err == nil && address != 0
}

// Call calls a function like a C program, including inline code of the header. Arguments are converted to the C types.
// errno is 0 before the call.
func (s *Stub) Call(function string, args ...uint64) (result uint64, errno runtime.Errno) {
	frame := make([]uint64, max(len(args), 1))
	copy(frame, args)
	r := new([2]uint64)
	f := runtime.Function{Name: function}
	if err := f.Slot(s.Symbol("call_"+function)).Void(uintptr(unsafe.Pointer(&frame[0])),
		uintptr(unsafe.Pointer(r))); err != nil {
		panic(err)
	}
	return r[0], runtime.Errno(r[1])
}

// Reset clears the log and all scripts, and turns recording on.
func (s *Stub) Reset() {
	s.ResetLog()
	clear(s.scripts)
	s.keep = nil
	s.log.from, s.log.to = 0, ^uint64(0)
	s.Recording(true)
}

// ResetLog clears only the log.
func (s *Stub) ResetLog() { s.log.used, s.log.calls = 0, 0 }

// Recording turns recording on or off. Without it, a call takes a few nanoseconds.
func (s *Stub) Recording(on bool) {
	s.log.recording = 0
	if on {
		s.log.recording = 1
	}
}

// Readable sets the memory in which contents of arguments may be recorded: arrays and inline data. After a Reset it is
// all memory.
func (s *Stub) Readable(memory []byte) {
	s.log.from = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	s.log.to = s.log.from + uint64(len(memory))
}

// Calls returns the number of recorded calls since ResetLog.
func (s *Stub) Calls() uint64 { return s.log.calls }

// Record is one call.
type Record struct {
	Name string   // "ibv_context_ops.post_send", "ibv_create_qp"
	Args []uint64 // 1 for lists, SGE arrays and addresses of addresses, 0 for NULL
	// for lists and arrays: every work request, with 1 or 0 for next, sg_list and hdr, its SGEs, and its inline data
	Contents []byte
}

func (r Record) String() string { return fmt.Sprintf("%s%#x %x", r.Name, r.Args, r.Contents) }

// Log returns the calls since the last Reset in order. It panics if the log overflowed.
func (s *Stub) Log() []Record {
	if s.log.used > s.log.capacity {
		panic("the stub's log is full: call ResetLog earlier")
	}
	return s.decode(s.RawLog())
}

func (s *Stub) decode(b []byte) []Record {
	var all []Record
	for len(b) > 0 {
		size, id, args, n := word(b, 0), word(b, 1), word(b, 2), word(b, 3)
		r := Record{Name: s.names[id]}
		for i := range args {
			r.Args = append(r.Args, binary.NativeEndian.Uint64(b[16+8*i:]))
		}
		r.Contents = slices.Clone(b[16+8*args:][:n])
		all = append(all, r)
		b = b[size:]
	}
	return all
}

// RawLog returns the log as written in C: equal calls yield equal bytes. It is valid until the next call.
func (s *Stub) RawLog() []byte { return s.records.Bytes()[:min(s.log.used, s.log.capacity)] }

func word(b []byte, i int) uint32 { return binary.NativeEndian.Uint32(b[4*i:]) }

// Result is the result of one call.
type Result struct {
	Value uint64        // returned value
	Errno runtime.Errno // errno, unless 0
	Bad   Bad           // value of bad_wr
	Pokes []Poke        // writes to output arguments, at most three
}

// Bad determines how a post sets bad_wr. The zero value leaves it unchanged.
type Bad int32

// BadNull sets bad_wr to NULL.
const BadNull Bad = 1

// BadAt sets bad_wr to a work request of the list, counted from 0.
func BadAt(index int) Bad { return Bad(2 + index) }

// Poke writes bytes at Offset of the memory that argument Arg points to, unless it is NULL.
type Poke struct {
	Arg, Offset int
	Bytes       []byte
}

type (
	cpoke struct {
		arg, offset  uint32
		length, from uint64
	}
	cresult struct {
		value      uint64
		error, bad int32
		pokes      uint64
		poke       [3]cpoke
	}
	script struct {
		count, next uint32
		results     [MaxResults]cresult
	}
)

// MaxResults is the maximum number of results in a script.
const MaxResults = 8

// Script sets the results of the next calls of a slot or function, one each; the last one repeats. Without results, a
// call returns 0, or the address of stub_object for a pointer.
func (s *Stub) Script(name string, results ...Result) {
	id, ok := s.ids[name]
	if !ok {
		panic(fmt.Sprintf("the stub, compiled with the headers of %s, has no slot or function %s", s.Release, name))
	}
	c := script{count: uint32(len(results))} // more than MaxResults panics below
	for i, r := range results {
		c.results[i] = cresult{value: r.Value, error: int32(r.Errno), bad: int32(r.Bad), pokes: uint64(len(r.Pokes))}
		for j, p := range r.Pokes {
			b := slices.Clone(p.Bytes)
			s.keep = append(s.keep, b) // on the heap: it does not move
			c.results[i].poke[j] = cpoke{arg: uint32(p.Arg), offset: uint32(p.Offset), length: uint64(len(b)),
				from: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))}
		}
	}
	s.scripts[id] = c
}

// at returns the T at an address of the library.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

func cstring(address uintptr) string {
	n := 0
	for p := at[byte](address); *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0; n++ {
	}
	return string(unsafe.Slice(at[byte](address), n))
}
