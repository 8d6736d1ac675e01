// SPDX-License-Identifier: BSD-2-Clause

package main

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -pthread
#include "baseline.h"
#include <stdlib.h>

#cgo noescape cgo_post_send
#cgo nocallback cgo_post_send
static inline int cgo_post_send(uintptr_t qp, uintptr_t wr, uintptr_t bad)
{
	return ibv_post_send((struct ibv_qp *)qp, (struct ibv_send_wr *)wr, (struct ibv_send_wr **)bad);
}

#cgo noescape cgo_poll_cq
#cgo nocallback cgo_poll_cq
static inline int cgo_poll_cq(uintptr_t cq, int entries, uintptr_t wc)
{
	return ibv_poll_cq((struct ibv_cq *)cq, entries, (struct ibv_wc *)wc);
}
*/
import "C"

import (
	"bytes"
	"errors"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

type stubKind int

const (
	stubReturn  stubKind = C.STUB_RETURN
	stubWQE     stubKind = C.STUB_WQE
	stubCapture stubKind = C.STUB_CAPTURE

	depth = C.STUB_DEPTH // maximum number of work requests in a list
)

func (k stubKind) String() string {
	return [...]string{"returning", "64-byte WQE", "capturing"}[k]
}

// stub is a device with queue pairs, and with a completion queue for each number of completions per poll.
type stub struct {
	c   *C.struct_stub
	cqs map[int]*C.struct_ibv_cq
}

func openStub(kind stubKind, qps int) *stub {
	return &stub{c: C.stub_open(C.enum_stub_kind(kind), C.int(qps)), cqs: map[int]*C.struct_ibv_cq{}}
}

// qps returns the first n queue pairs.
func (s *stub) qps(n int) []*ibv.QP {
	return unsafe.Slice((**ibv.QP)(unsafe.Pointer(s.c.qp)), int(s.c.qps))[:n]
}

func (s *stub) context() *ibv.Context { return (*ibv.Context)(unsafe.Pointer(s.c.context)) }

func (s *stub) cq(available int) *ibv.CQ { return (*ibv.CQ)(unsafe.Pointer(s.ccq(available))) }

func (s *stub) ccq(available int) *C.struct_ibv_cq {
	q := s.cqs[available]
	if q == nil {
		q = C.stub_create_cq(s.c, C.int(available))
		s.cqs[available] = q
	}
	return q
}

// captured returns the last list that the capturing stub received: work requests and SGEs, with addresses relative to
// the list.
func captured() []byte {
	all := unsafe.Slice((*byte)(unsafe.Pointer(&C.stub_captured)), C.sizeof_struct_stub_captured)
	return bytes.Clone(all)
}

// work describes the data of every list: work request k of list i is for the bytes at addr + (i + k) * length.
type work struct {
	addr, remoteAddr   uint64
	length, lkey, rkey uint32
}

var theWork = work{addr: 0x7f0000000000, remoteAddr: 0x7e0000000000, length: 64, lkey: 0x1234, rkey: 0x5678}

var errFailed = errors.New("unexpected failure of a call")

// prepareC prepares the case in C, on C threads.
func prepareC(c cell, s *stub) (sampler, error) {
	w := C.struct_work{addr: C.uint64_t(theWork.addr), remote_addr: C.uint64_t(theWork.remoteAddr),
		length: C.uint32_t(theWork.length),
		lkey:   C.uint32_t(theWork.lkey), rkey: C.uint32_t(theWork.rkey)}
	baselines := (*[1 << 10]*C.struct_baseline)(C.calloc(C.size_t(c.goroutines),
		C.size_t(unsafe.Sizeof(uintptr(0)))))[:c.goroutines]
	run := func(which C.enum_baseline_case, n int) (time.Duration, error) {
		ns := C.baseline_run(&baselines[0], C.int(c.goroutines), which, C.long(n))
		if ns < 0 {
			return 0, errFailed
		}
		return time.Duration(ns), nil
	}
	for i := range baselines {
		baselines[i] = C.baseline_new(s.c, s.ccq(c.batch), C.int(c.qps), C.int(c.batch), w)
	}
	which := map[string]C.enum_baseline_case{caseCall: C.CASE_CALL, caseBuild: C.CASE_BUILD, casePatch: C.CASE_PATCH,
		casePoll: C.CASE_POLL}[c.name]
	if which == C.CASE_CALL || which == C.CASE_PATCH {
		if _, err := run(C.CASE_BUILD, 1); err != nil {
			return nil, err
		}
	}
	return func(n int) (time.Duration, error) { return run(which, n) }, nil
}

// postCgo and pollCgo call C with cgo.
func postCgo(qp, wr, bad uintptr) int32 {
	return int32(C.cgo_post_send(C.uintptr_t(qp), C.uintptr_t(wr), C.uintptr_t(bad)))
}

func pollCgo(cq uintptr, entries int32, wc uintptr) int32 {
	return int32(C.cgo_poll_cq(C.uintptr_t(cq), C.int(entries), C.uintptr_t(wc)))
}

// lend replaces a device's context functions with those of the stub, which return immediately. Each poll finds the
// completion set by completes.
func lend(c *ibv.Context) { C.stub_lend((*C.struct_ibv_context_ops)(unsafe.Pointer(&c.Ops))) }

// completes sets the completion that polls find: that of a request of a queue pair, or none for 0.
func completes(id uint64, qpNum uint32, op ibv.WCOpcode) {
	*(*ibv.WC)(unsafe.Pointer(&C.stub_completion)) = ibv.WC{WRID: id, QPNum: qpNum, Opcode: op}
}
