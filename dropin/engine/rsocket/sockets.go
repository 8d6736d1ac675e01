// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Sockets are the rsockets of a process.
type Sockets struct {
	backend func() (runtime.Backend, error)

	mu  sync.RWMutex
	all map[int32]*socket // by descriptor
}

// New returns the sockets of a process over a backend, which is requested when a socket is first bound or connects.
func New(backend func() (runtime.Backend, error)) *Sockets {
	return &Sockets{backend: backend, all: map[int32]*socket{}}
}

// find returns the socket of a descriptor, or nil.
func (s *Sockets) find(fd int32) *socket {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[fd]
}

func (s *Sockets) add(k *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[int32(k.fd)] = k
}

// arguments are the arguments of a C call.
type arguments []uint64

func (a arguments) int(i int) int { return int(int32(a[i])) }

// bytes returns memory of the program: argument i is the address, argument i+1 the length.
func (a arguments) bytes(i int) []byte { return memory(a[i], a[i+1]) }

func memory(at, n uint64) []byte {
	if at == 0 || n == 0 {
		return nil
	}
	return unsafe.Slice(ibv.Ptr[byte](at).Deref(), int(n))
}

// done is the result of a call that never waits.
func done(n int, err error) *call {
	return &call{try: func(error) (int, error) { return n, err }}
}

// calls are the functions that take a socket as their first argument.
var calls = map[string]func(k *socket, a arguments) *call{
	"rbind":        func(k *socket, a arguments) *call { return done(0, k.bind(a.bytes(1))) },
	"rlisten":      func(k *socket, a arguments) *call { return done(0, k.listen(a.int(1))) },
	"raccept":      func(k *socket, a arguments) *call { return k.accept(a[1], a[2]) },
	"rconnect":     func(k *socket, a arguments) *call { return k.connect(a.bytes(1)) },
	"rshutdown":    func(k *socket, a arguments) *call { return done(0, k.shutdown(a.int(1))) },
	"rread":        func(k *socket, a arguments) *call { return k.receive(one(a.bytes(1)), 0, 0, 0) },
	"rrecv":        func(k *socket, a arguments) *call { return k.receive(one(a.bytes(1)), a.int(3), 0, 0) },
	"rrecvfrom":    func(k *socket, a arguments) *call { return k.receive(one(a.bytes(1)), a.int(3), a[4], a[5]) },
	"rreadv":       func(k *socket, a arguments) *call { return k.receive(vectors(a[1], a[2]), 0, 0, 0) },
	"rrecvmsg":     func(k *socket, a arguments) *call { return k.receiveMessage(a[1], a.int(2)) },
	"rwrite":       func(k *socket, a arguments) *call { return k.send(one(a.bytes(1)), 0) },
	"rsend":        func(k *socket, a arguments) *call { return k.send(one(a.bytes(1)), a.int(3)) },
	"rsendto":      func(k *socket, a arguments) *call { return k.sendTo(a.bytes(1), a.int(3), a[4]) },
	"rwritev":      func(k *socket, a arguments) *call { return k.send(vectors(a[1], a[2]), 0) },
	"rsendmsg":     func(k *socket, a arguments) *call { return k.sendMessage(a[1], a.int(2)) },
	"rgetpeername": func(k *socket, a arguments) *call { return done(0, k.peerName(a[1], a[2])) },
	"rgetsockname": func(k *socket, a arguments) *call { return done(0, k.ownName(a[1], a[2])) },
	"rsetsockopt": func(k *socket, a arguments) *call {
		return done(0, k.set(option{a.int(1), a.int(2)}, memory(a[3], uint64(uint32(a[4])))))
	},
	"rgetsockopt": func(k *socket, a arguments) *call {
		return done(0, k.get(option{a.int(1), a.int(2)}, a[3], a[4]))
	},
	"rfcntl":   func(k *socket, a arguments) *call { return done(k.control(a.int(1), a.int(2))) },
	"riomap":   func(k *socket, a arguments) *call { return done(k.mapMemory(a[1], a[2], a.int(3), int64(a[5]))) },
	"riounmap": func(k *socket, a arguments) *call { return done(0, k.unmapMemory(a[1], a[2])) },
	"riowrite": func(k *socket, a arguments) *call { return k.writeAt(a.bytes(1), int64(a[3]), a.int(4)) },
}

// one returns a list with one element.
func one(p []byte) [][]byte { return [][]byte{p} }

// Waits reports whether a function may wait and therefore is a cancellation point, like its counterpart for sockets.
// Its thread waits outside Go, as package nap describes.
func Waits(name string) bool { return slices.Contains(waits, name) }

var waits = strings.Fields("raccept rclose rconnect rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend " +
	"rsendmsg rsendto rwrite rwritev")

// Function returns an rsocket function of librdmacm, or nil.
func (s *Sockets) Function(name string) runtime.Func {
	var start func(a arguments) *call
	switch name {
	case "rsocket":
		start = func(a arguments) *call { return done(s.open(a.int(0), a.int(1), a.int(2))) }
	case "rclose":
		start = func(a arguments) *call { return s.close(int32(a[0])) }
	case "rpoll":
		start = func(a arguments) *call { return s.poll(pollFDs(a[0], a[1]), a.int(2), nil) }
	case "rselect":
		start = s.selectFDs
	default:
		known := calls[name]
		if known == nil {
			return nil
		}
		start = func(a arguments) *call {
			if k := s.find(int32(a[0])); k != nil {
				return known(k, a)
			}
			return done(0, unix.EBADF)
		}
	}
	return func(a []uint64) (uint64, runtime.Errno) { return begin(start(a)) }
}
