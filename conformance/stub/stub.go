// SPDX-License-Identifier: BSD-2-Clause

// Package stub builds a provider of its own: a shared library, compiled from C against the real headers, whose slots
// and exported functions record how they were called and answer what a test has scripted. It stands for a device and
// for libibverbs, librdmacm and the providers' libraries, so that what Go calls and what C calls can be compared byte
// by byte.
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

	"github.com/goverbs/goverbs/internal/abicheck"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// Stub is the library, opened. There is one in a process: its log and its scripts are shared by every device.
type Stub struct {
	Path    string // of the shared library, to be named to a runtime.Library
	Release string // of the headers that it was compiled with
	library runtime.Library
	names   []string
	ids     map[string]uint32
	log     *clog
	records *offheap.Mapping
	scripts []script
	places  map[string]place
	size    int // of a device
	keep    [][]byte
}

type place struct{ offset, size uintptr }

// clog is struct stub_log.
type clog struct{ recording, capacity, used, calls, from, to, records uint64 }

// logBytes is how much the log holds between two Resets.
const logBytes = 16 << 20

var opened struct {
	sync.Once
	stub *Stub
	err  error
}

// Build compiles the stub and opens it, once in a process. Without a C compiler or
// rdma-core's headers, it skips the test.
func Build(t testing.TB) *Stub {
	t.Helper()
	opened.Do(func() { opened.stub, opened.err = build() })
	if errors.Is(opened.err, abicheck.ErrNoCompiler) || errors.Is(opened.err, abicheck.ErrNoHeaders) {
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

// Symbol is the address of a function or a variable of the library: "stub_object", "call_ibv_post_send",
// "ibv_create_qp". It panics when there is none; see [Stub.Has].
func (s *Stub) Symbol(name string) uintptr {
	address, err := s.library.Symbol(name)
	if err != nil || address == 0 {
		panic(fmt.Sprintf("the stub, compiled with the headers of %s, has no %s (%v)", s.Release, name, err))
	}
	return address
}

// Has reports whether the headers that the stub was compiled with have a slot ("ibv_qp_ex.wr_flush") or an exported
// function.
func (s *Stub) Has(name string) bool { _, ok := s.ids[name]; return ok }

// HasCall reports whether they have a function, inline or exported, that Call can call.
func (s *Stub) HasCall(function string) bool {
	address, err := s.library.Symbol("call_" + function)
	return err == nil && address != 0
}

// Call calls a function as a C program does, inline code of the header included. Arguments are cast to the C types.
// errno was 0 before the call.
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

// Reset forgets the log and every script, and turns recording on.
func (s *Stub) Reset() {
	s.ResetLog()
	clear(s.scripts)
	s.keep = nil
	s.log.from, s.log.to = 0, ^uint64(0)
	s.Recording(true)
}

// ResetLog forgets the log alone.
func (s *Stub) ResetLog() { s.log.used, s.log.calls = 0, 0 }

// Recording turns recording on or off. Without it a call costs C a few nanoseconds.
func (s *Stub) Recording(on bool) {
	s.log.recording = 0
	if on {
		s.log.recording = 1
	}
}

// Readable says where the contents behind addresses may be read: arrays that are arguments, data that is sent inline.
// Anywhere, after a Reset.
func (s *Stub) Readable(memory []byte) {
	s.log.from = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	s.log.to = s.log.from + uint64(len(memory))
}

// Calls is how many calls came since ResetLog while recording was on.
func (s *Stub) Calls() uint64 { return s.log.calls }

// Record is one call.
type Record struct {
	Name string   // "ibv_context_ops.post_send", "ibv_create_qp"
	Args []uint64 // lists, arrays of SGEs and addresses of addresses as 1, or 0 for NULL
	// of lists and arrays: every work request with next, sg_list and hdr as 1 or 0, its SGEs, its inline data
	Contents []byte
}

func (r Record) String() string { return fmt.Sprintf("%s%#x %x", r.Name, r.Args, r.Contents) }

// Log is the calls since the last Reset, in their order. Calls that the log had no room for panic.
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

// RawLog is the log as C wrote it: equal calls give equal bytes. It is valid until the next call.
func (s *Stub) RawLog() []byte { return s.records.Bytes()[:min(s.log.used, s.log.capacity)] }

func word(b []byte, i int) uint32 { return binary.NativeEndian.Uint32(b[4*i:]) }

// Result is the answer to one call.
type Result struct {
	Value uint64        // what the function returns
	Errno runtime.Errno // what errno becomes, unless 0
	Bad   Bad           // where bad_wr points
	Pokes []Poke        // what is written behind arguments; three at most
}

// Bad says where a post lets bad_wr point. The zero value leaves it alone.
type Bad int32

// BadNull lets bad_wr be NULL.
const BadNull Bad = 1

// BadAt lets bad_wr point to a work request of the list, counted from 0.
func BadAt(index int) Bad { return Bad(2 + index) }

// Poke writes bytes to where argument Arg points, Offset bytes behind it, unless it is NULL.
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

// MaxResults is how many results a script has at most.
const MaxResults = 8

// Script says what the next calls of a slot or function answer, one result each, and every later call the last
// one. Without a script, and without results, it is 0, or the address of stub_object where a pointer is returned.
func (s *Stub) Script(name string, results ...Result) {
	id, ok := s.ids[name]
	if !ok {
		panic(fmt.Sprintf("the stub, compiled with the headers of %s, has no slot or function %s", s.Release, name))
	}
	c := script{count: uint32(len(results))} // more than MaxResults panic below
	for i, r := range results {
		c.results[i] = cresult{value: r.Value, error: int32(r.Errno), bad: int32(r.Bad), pokes: uint64(len(r.Pokes))}
		for j, p := range r.Pokes {
			b := slices.Clone(p.Bytes)
			s.keep = append(s.keep, b) // on the heap, where it stays
			c.results[i].poke[j] = cpoke{arg: uint32(p.Arg), offset: uint32(p.Offset), length: uint64(len(b)),
				from: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))}
		}
	}
	s.scripts[id] = c
}

// at is the T at an address of the library.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

func cstring(address uintptr) string {
	n := 0
	for p := at[byte](address); *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0; n++ {
	}
	return string(unsafe.Slice(at[byte](address), n))
}
