package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// Hints say what [GetAddrInfo] shall look for.
type Hints struct {
	Flags     int32            // rdmacm.RAI_PASSIVE for who listens, RAI_NUMERICHOST, RAI_NOROUTE, RAI_FAMILY...
	Family    int32            // of Linux: 2 for IPv4, 10 for IPv6, 27 for InfiniBand's own; 0 for any
	QPType    ibv.QPType       // 0: as the port space has it
	PortSpace rdmacm.PortSpace // 0: RDMA_PS_TCP
	Source    netip.AddrPort   // to start from; or not valid
	// Destination is the peer, where neither a node nor a service names one; or not valid.
	Destination netip.AddrPort
}

// AddrInfo is what a name and a service stand for: addresses, and what is known of the way there. It is C's memory, to be closed.
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

// use keeps the answers in memory until done, and says whether they are not closed.
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

// AddrInfoError says that a name or a service is not known: a number of getaddrinfo(3).
type AddrInfoError struct {
	Node, Service string
	Code          int
}

// Numbers of getaddrinfo(3) in the GNU C library.
var addrInfoErrors = map[int]string{
	-1: "wrong flags", -2: "the name or the service is not known", -3: "the name cannot be resolved just now", -4: "the name cannot be resolved",
	-6: "the address family is not supported", -7: "the kind of socket is not supported", -8: "the service is not known", -10: "out of memory", -11: "a system error",
}

func (e *AddrInfoError) Error() string {
	s := addrInfoErrors[e.Code]
	if s == "" {
		s = fmt.Sprintf("code %d", e.Code)
	}
	return fmt.Sprintf("rdma_getaddrinfo: %q, %q: %s", e.Node, e.Service, s)
}

// GetAddrInfo resolves a node, by name or address, and a service, by name or number; either may be "". It may ask the network, and blocks its
// thread; ctx only ends the wait for it.
//
// C: rdma_getaddrinfo
//
// Man: rdma_getaddrinfo(3)
func GetAddrInfo(ctx context.Context, node, service string, h Hints) (*AddrInfo, error) {
	return GetAddrInfoOn(ctx, nil, node, service, h)
}

// GetAddrInfoOn is GetAddrInfo of a software backend; nil means the native library.
func GetAddrInfoOn(ctx context.Context, backend runtime.Backend, node, service string, h Hints) (*AddrInfo, error) {
	return inBackground(ctx, func() (*AddrInfo, error) { return getAddrInfo(backend, node, service, h) }, func(a *AddrInfo) { a.Close() })
}

// inBackground calls f, and gives up waiting when ctx ends; what f makes then is undone.
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

func getAddrInfo(backend runtime.Backend, node, service string, h Hints) (*AddrInfo, error) {
	res := new(ibv.Ptr[rdmacm.AddrInfo])
	code, err := librdmacm.From{Backend: backend}.GetAddrInfo(node, service, h.c(), res)
	switch {
	case err != nil && code != 0 && code != -1:
		return nil, &AddrInfoError{node, service, code}
	case err != nil:
		return nil, wrap("rdma_getaddrinfo", fmt.Sprintf("%q, %q", node, service), err)
	}
	return &AddrInfo{C: res.Deref(), list: &addrList{c: res.Deref(), backend: backend}}, nil
}

// c gives the hints as C takes them. C follows the address in them, so both stay in one piece of memory that does not move.
func (h Hints) c() *rdmacm.AddrInfo {
	hints := new(struct {
		rdmacm.AddrInfo
		source, destination rdmacm.SockaddrStorage
	})
	hints.AiFlags, hints.AiFamily, hints.AiQPType, hints.AiPortSpace = h.Flags, h.Family, h.QPType, h.PortSpace
	if hints.AiPortSpace == 0 {
		hints.AiPortSpace = rdmacm.PS_TCP
	}
	if h.Source.IsValid() {
		hints.source = *sockaddr(h.Source)
		hints.AiSrcAddr = ibv.Ptr[rdmacm.Sockaddr](uintptr(unsafe.Pointer(&hints.source)))
		hints.AiSrcLen = sockaddrLen(&hints.source)
	}
	if h.Destination.IsValid() {
		hints.destination = *sockaddr(h.Destination)
		hints.AiDstAddr = ibv.Ptr[rdmacm.Sockaddr](uintptr(unsafe.Pointer(&hints.destination)))
		hints.AiDstLen = sockaddrLen(&hints.destination)
		if hints.AiQPType == 0 { // which C only knows where it looks something up
			hints.AiQPType = ibv.QPT_RC
			if hints.AiPortSpace == rdmacm.PS_UDP || hints.AiPortSpace == rdmacm.PS_IPOIB {
				hints.AiQPType = ibv.QPT_UD
			}
		}
	}
	return &hints.AddrInfo
}

func sockaddrLen(s *rdmacm.SockaddrStorage) uint32 {
	if s.SsFamily == afInet {
		return uint32(unsafe.Sizeof(rdmacm.SockaddrIn{}))
	}
	return uint32(unsafe.Sizeof(rdmacm.SockaddrIn6{}))
}

// Next is the next answer, or nil.
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

// Source is the address to start from, or listen on; not valid where there is none, or none of IP.
func (a *AddrInfo) Source() netip.AddrPort {
	if !a.list.use() {
		return netip.AddrPort{}
	}
	defer a.list.done()
	return addrPort(a.C.AiSrcAddr.Deref())
}

// Destination is the address of the peer.
func (a *AddrInfo) Destination() netip.AddrPort {
	if !a.list.use() {
		return netip.AddrPort{}
	}
	defer a.list.done()
	return addrPort(a.C.AiDstAddr.Deref())
}

// name is the answer in messages.
func (a *AddrInfo) name() string {
	switch {
	case a.Destination().IsValid():
		return a.Destination().String()
	case a.Source().IsValid():
		return a.Source().String()
	}
	return fmt.Sprintf("an address of family %d", a.C.AiFamily)
}

// reason says why there is no endpoint for it.
func (a *AddrInfo) reason(err error) string {
	if a.C.AiFamily == afIB && errors.Is(err, enodev) {
		return "there is no InfiniBand device on the way to it"
	}
	return ""
}

// Close frees all answers together, once no [CreateEP] reads them any more. Closing again does nothing.
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

// ResolveAddrInfo is GetAddrInfo on an ID, for services of InfiniBand's subnet administration, too (RAI_SA). RDMA_CM_EVENT_ADDRINFO_RESOLVED
// follows, and then QueryAddrInfo has the answer. A name that has to be looked up blocks the thread. An ID resolves one thing at a time: until
// QueryAddrInfo has taken it.
//
// C: rdma_resolve_addrinfo
//
// Man: rdma_resolve_addrinfo(3)
func (id *ID) ResolveAddrInfo(ctx context.Context, node, service string, h Hints) error {
	const verb = "rdma_resolve_addrinfo"
	return id.begin(ctx, verb, func() error {
		err := librdmacm.ResolveAddrInfo(id.c, node, service, h.c())
		reason := ""
		var call *runtime.CallError
		switch {
		case !errors.As(err, &call):
		case h.Flags&rdmacm.RAI_SA != 0:
			reason = "RAI_SA asks InfiniBand's subnet administration, which needs an ID that is bound to a device which has it"
		case call.Errno == 0, call.Errno == enoent: // C drops the number that getaddrinfo gives
			reason = fmt.Sprintf("node %q or service %q is not known", node, service)
		}
		return explain(verb, "", reason, err)
	}, rdmacm.CM_EVENT_ADDRINFO_RESOLVED)
}

// QueryAddrInfo gives what ResolveAddrInfo found, once.
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
		return nil, &AddrInfoError{Code: int(enoent)}
	}
	return &AddrInfo{C: res.Deref(), list: &addrList{c: res.Deref(), backend: id.backend}}, nil
}
