// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	goruntime "runtime"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// AddrInfo is a result of address resolution: addresses and the path to them. It refers to C memory; close it after
// use.
//
// Man: rdma_getaddrinfo(3)
type AddrInfo struct {
	C    *rdmacm.AddrInfo
	list *addrList
}

type addrList struct {
	c       *rdmacm.AddrInfo
	backend runtime.Backend

	mu     sync.Mutex
	users  int // calls that read it
	closed bool
}

// use keeps the results in memory until done. It returns false if they have been freed.
func (l *addrList) use() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.users++
	}
	return !l.closed
}

func (l *addrList) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.closed && l.users == 0 {
		librdmacm.FreeAddrInfo(l.c)
	}
}

// AddrInfoError reports an unknown name or service. It is an error number of getaddrinfo(3).
type AddrInfoError struct {
	Node, Service string
	Code          int
	hint          string // lists the addresses of software devices
}

// Numbers of getaddrinfo(3) in the GNU C library.
var addrInfoErrors = map[int]string{
	-1: "invalid flags", -2: "unknown name or service", -3: "the name cannot be resolved at the moment",
	-4: "the name cannot be resolved",
	-6: "the address family is not supported", -7: "the kind of socket is not supported",
	-8: "unknown service", -10: "out of memory", -11: "a system error",
}

func (e *AddrInfoError) Error() string {
	s := addrInfoErrors[e.Code]
	if s == "" {
		s = fmt.Sprintf("code %d", e.Code)
	}
	return fmt.Sprintf("rdma_getaddrinfo: %q, %q: %s%s", e.Node, e.Service, s, e.hint)
}

// GetAddrInfo resolves a node, by name or address, and a service, by name or number; either may be "". It blocks its
// thread, for example during a DNS query. If ctx ends first, GetAddrInfo returns and the query continues in the
// background.
//
// C: rdma_getaddrinfo
//
// Man: rdma_getaddrinfo(3)
func GetAddrInfo(ctx context.Context, node, service string, h Hints) (*AddrInfo, error) {
	return GetAddrInfoOn(ctx, nil, node, service, h)
}

// GetAddrInfoOn is GetAddrInfo on a software backend. A nil backend selects by GOVERBS_DEVICE, like GetAddrInfo;
// runtime.Native selects rdma-core.
func GetAddrInfoOn(ctx context.Context, backend runtime.Backend, node, service string, h Hints) (*AddrInfo, error) {
	if err := h.check("rdma_getaddrinfo", node); err != nil {
		return nil, err
	}
	backend, err := chosen.Of(backend)
	if err != nil {
		return nil, err
	}
	hints := h.c() // copied now: the caller may change h after ctx has ended
	return inBackground(ctx, func() (*AddrInfo, error) { return getAddrInfo(backend, node, service, hints) },
		func(a *AddrInfo) { a.Close() })
}

// inBackground calls f in a goroutine and returns its result. If ctx ends first, it returns ctx's error, and a later
// result of f is passed to undo.
func inBackground[T any](ctx context.Context, f func() (T, error), undo func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				undo(r.v)
			}
		}()
		var none T
		return none, ctx.Err()
	}
}

func getAddrInfo(backend runtime.Backend, node, service string, hints *cHints) (*AddrInfo, error) {
	res := new(ibv.Ptr[rdmacm.AddrInfo])
	code, err := librdmacm.From{Backend: backend}.GetAddrInfo(node, service, &hints.AddrInfo, res)
	goruntime.KeepAlive(hints)
	switch {
	case err != nil && code != 0 && code != -1:
		return nil, &AddrInfoError{node, service, code, addressesOf(backend)}
	case err != nil:
		return nil, verberr.Wrap("rdma_getaddrinfo", fmt.Sprintf("%q, %q", node, service), err)
	}
	return &AddrInfo{C: res.Deref(), list: &addrList{c: res.Deref(), backend: backend}}, nil
}

// Next returns the next result, or nil.
func (a *AddrInfo) Next() *AddrInfo {
	if !a.list.use() {
		return nil
	}
	defer a.list.done()
	next := a.C.AiNext.Deref()
	if next == nil {
		return nil
	}
	return &AddrInfo{next, a.list}
}

// Source returns the local address for connecting or listening. It is invalid if there is none, or if it is not an IP
// address.
func (a *AddrInfo) Source() netip.AddrPort {
	if !a.list.use() {
		return netip.AddrPort{}
	}
	defer a.list.done()
	return addrPort(a.C.AiSrcAddr.Deref())
}

// Destination returns the address of the peer.
func (a *AddrInfo) Destination() netip.AddrPort {
	if !a.list.use() {
		return netip.AddrPort{}
	}
	defer a.list.done()
	return addrPort(a.C.AiDstAddr.Deref())
}

// SourceIB returns the local address if it is an AF_IB address, and reports whether it is.
func (a *AddrInfo) SourceIB() (IBAddr, bool) {
	if !a.list.use() {
		return IBAddr{}, false
	}
	defer a.list.done()
	return ibAddr(a.C.AiSrcAddr.Deref())
}

// DestinationIB returns the peer's address if it is an AF_IB address, and reports whether it is.
func (a *AddrInfo) DestinationIB() (IBAddr, bool) {
	if !a.list.use() {
		return IBAddr{}, false
	}
	defer a.list.done()
	return ibAddr(a.C.AiDstAddr.Deref())
}

// Route returns a copy of the paths to the peer on InfiniBand, or nil if they are unknown. librdmacm queries ibacm(8)
// for them. Without them, [CreateEP] lets the kernel find a path. [ID.SetIBPath] accepts the result.
func (a *AddrInfo) Route() []rdmacm.IBVPathData {
	if !a.list.use() {
		return nil
	}
	defer a.list.done()
	n := a.C.AiRouteLen / uint64(unsafe.Sizeof(rdmacm.IBVPathData{}))
	if a.C.AiRoute == 0 || n == 0 {
		return nil
	}
	return slices.Clone(unsafe.Slice(ibv.Ptr[rdmacm.IBVPathData](a.C.AiRoute).Deref(), n))
}

// Connect returns a copy of the bytes that must precede the private data of rdma_connect, or nil. An ID of [CreateEP]
// adds them itself, which leaves less room for the caller's private data.
func (a *AddrInfo) Connect() []byte {
	if !a.list.use() {
		return nil
	}
	defer a.list.done()
	if a.C.AiConnect == 0 || a.C.AiConnectLen == 0 {
		return nil
	}
	return slices.Clone(unsafe.Slice(ibv.Ptr[byte](a.C.AiConnect).Deref(), a.C.AiConnectLen))
}

// CanonicalNames returns the names of the source and the destination, or "". Current librdmacm does not request them.
func (a *AddrInfo) CanonicalNames() (source, destination string) {
	if !a.list.use() {
		return "", ""
	}
	defer a.list.done()
	return cString(a.C.AiSrcCanonname), cString(a.C.AiDstCanonname)
}

// cString copies a C string.
func cString(s ibv.Ptr[byte]) string {
	if s == 0 {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s.Deref()), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s.Deref(), n))
}

// name names the result in error texts.
func (a *AddrInfo) name() string {
	if a.list.use() {
		defer a.list.done()
		if s := cmp.Or(addressString(a.C.AiDstAddr.Deref()), addressString(a.C.AiSrcAddr.Deref())); s != "" {
			return s
		}
	}
	return fmt.Sprintf("an address of family %d", a.C.AiFamily)
}

// reason explains a failure of rdma_create_ep.
func (a *AddrInfo) reason(err error) string {
	if a.C.AiFamily == rdmacm.AF_IB && errors.Is(err, syscall.ENODEV) {
		return "no InfiniBand device has a route to the address"
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return "the address " + addressString(a.C.AiSrcAddr.Deref()) + " is in use"
	}
	return ""
}

// Close frees all results of the list. It waits for calls of [CreateEP] that read them. A second Close does nothing.
//
// C: rdma_freeaddrinfo
//
// Man: rdma_getaddrinfo(3)
func (a *AddrInfo) Close() {
	l := a.list
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.users == 0 {
		librdmacm.FreeAddrInfo(l.c)
	}
	l.closed = true
}

// ResolveAddrInfo is GetAddrInfo on an ID. It can also query InfiniBand's subnet administration (RAI_SA).
// RDMA_CM_EVENT_ADDRINFO_RESOLVED reports the outcome, and QueryAddrInfo returns the result; until then, the ID accepts
// no other request. A name lookup blocks the thread.
//
// C: rdma_resolve_addrinfo
//
// Man: rdma_resolve_addrinfo(3)
func (id *ID) ResolveAddrInfo(ctx context.Context, node, service string, h Hints) error {
	const verb = "rdma_resolve_addrinfo"
	if err := h.check(verb, node); err != nil {
		return err
	}
	return id.begin(ctx, verb, func() error {
		hints := h.c()
		err := librdmacm.ResolveAddrInfo(id.c, node, service, &hints.AddrInfo)
		goruntime.KeepAlive(hints)
		reason := ""
		var call *runtime.CallError
		switch {
		case !errors.As(err, &call):
		case h.Flags&rdmacm.RAI_SA != 0:
			reason = "RAI_SA queries InfiniBand's subnet administration: bind the ID to an InfiniBand " +
				"device first"
		case call.Errno == 0, call.Errno == syscall.ENOENT: // C drops getaddrinfo's error number
			reason = fmt.Sprintf("unknown node %q or service %q", node, service)
		}
		return verberr.Explain(verb, "", reason, err)
	}, rdmacm.CM_EVENT_ADDRINFO_RESOLVED)
}

// QueryAddrInfo returns the result of ResolveAddrInfo. It can be called once.
//
// C: rdma_query_addrinfo
//
// Man: rdma_query_addrinfo(3)
func (id *ID) QueryAddrInfo() (*AddrInfo, error) {
	res := new(ibv.Ptr[rdmacm.AddrInfo])
	if err := id.call("rdma_query_addrinfo", func() error { return librdmacm.QueryAddrInfo(id.c, res) }); err != nil {
		return nil, err
	}
	if *res == 0 {
		return nil, &AddrInfoError{Code: int(syscall.ENOENT)}
	}
	return &AddrInfo{C: res.Deref(), list: &addrList{c: res.Deref(), backend: id.backend}}, nil
}
