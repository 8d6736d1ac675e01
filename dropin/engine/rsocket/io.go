// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"io"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/stream"
)

// waits reports whether a call with these flags may wait.
func (k *socket) waits(flags int) bool { return !k.nonblock.Load() && flags&unix.MSG_DONTWAIT == 0 }

// receive implements rrecv and its variants. It returns 0 at the end of the data, also after a shutdown for reading. It
// waits for the first bytes, or for all (MSG_WAITALL), and then stores the sender's address.
func (k *socket) receive(to [][]byte, flags int, address, length uint64) *call {
	if flags&(unix.MSG_OOB|unix.MSG_ERRQUEUE) != 0 {
		return done(0, unix.EOPNOTSUPP)
	}
	got, wanted := 0, 0
	for _, p := range to {
		wanted += len(p)
	}
	peek := flags&unix.MSG_PEEK != 0
	all := flags&unix.MSG_WAITALL != 0 && !peek
	return &call{waits: []awaited{{k, unix.POLLIN}}, try: func(interrupted error) (int, error) {
		c, err := k.stream()
		for err == nil && got < wanted && !k.deaf.Load() {
			var n int
			if peek {
				n, err = c.Peek(to[0])
			} else {
				n, err = c.TryRead(to[0])
			}
			got += n
			if to[0] = to[0][n:]; len(to[0]) == 0 { // to is a copy of C's list
				to = to[1:]
			} else if err == nil && !all { // no more data for now
				break
			}
			if peek {
				break
			}
		}
		switch {
		case err == unix.EAGAIN && (got == 0 || all) && k.waits(flags) && interrupted == nil:
			return 0, errWait
		case got > 0: // the next call returns the error
			err = nil
		case err == io.EOF:
			return 0, nil
		case err == unix.EAGAIN && interrupted != nil:
			err = interrupted
		}
		if err == nil && address != 0 {
			err = k.peerName(address, length)
		}
		return got, err
	}}
}

// maxGathered is the largest list that is sent as one message.
const maxGathered = 64 << 10

// send implements rsend and its variants. It sends everything, or if it may not wait, as much as fits into the send
// queue. Short lists are sent as one message.
func (k *socket) send(from [][]byte, flags int) *call {
	if flags&unix.MSG_OOB != 0 {
		return done(0, unix.EOPNOTSUPP)
	}
	total, sent := 0, 0
	for _, p := range from {
		total += len(p)
	}
	if len(from) > 1 && total <= maxGathered {
		from = [][]byte{slices.Concat(from...)}
	}
	return &call{waits: []awaited{{k, unix.POLLOUT}}, try: func(interrupted error) (int, error) {
		c, err := k.stream()
		if k.mute.Load() {
			err = unix.EPIPE
		}
		for err == nil && sent < total {
			var n int
			n, err = c.TryWrite(from[0])
			if sent += n; n == len(from[0]) {
				from = from[1:]
			} else {
				from[0] = from[0][n:]
			}
		}
		switch {
		case err == unix.EAGAIN && k.waits(flags) && interrupted == nil:
			return 0, errWait
		case sent > 0: // the next call returns the error
			return sent, nil
		case err == unix.EAGAIN && interrupted != nil:
			err = interrupted
		}
		return sent, err
	}}
}

// sendTo implements rsendto. A connected socket accepts no address.
func (k *socket) sendTo(p []byte, flags int, address uint64) *call {
	if address != 0 && k.conn.Load() != nil {
		return done(0, unix.EISCONN)
	}
	return k.send(one(p), flags)
}

// vectors returns the memory of an iovec array.
func vectors(at, n uint64) [][]byte {
	var all [][]byte
	if n = uint64(uint32(n)); at == 0 || n == 0 {
		return nil
	}
	for _, v := range unsafe.Slice(ibv.Ptr[unix.Iovec](at).Deref(), int(n)) {
		if v.Len > 0 {
			all = append(all, unsafe.Slice(v.Base, int(v.Len)))
		}
	}
	return all
}

// message returns a msghdr and its memory. rsockets have no control data.
func message(at uint64) (*unix.Msghdr, [][]byte, error) {
	if at == 0 {
		return nil, nil, unix.EFAULT
	}
	m := ibv.Ptr[unix.Msghdr](at).Deref()
	if m.Control != nil && m.Controllen > 0 {
		return nil, nil, unix.ENOTSUP
	}
	var all [][]byte
	if m.Iovlen > 0 {
		all = vectors(uint64(uintptr(unsafe.Pointer(m.Iov))), m.Iovlen)
	}
	return m, all, nil
}

// receiveMessage implements rrecvmsg.
func (k *socket) receiveMessage(at uint64, flags int) *call {
	m, all, err := message(at)
	if err != nil {
		return done(0, err)
	}
	m.Flags, m.Namelen, m.Controllen = 0, 0, 0
	return k.receive(all, flags, 0, 0)
}

// sendMessage implements rsendmsg.
func (k *socket) sendMessage(at uint64, flags int) *call {
	_, all, err := message(at)
	if err != nil {
		return done(0, err)
	}
	return k.send(all, flags)
}

// eventsOf returns the poll events of a connection.
func eventsOf(r stream.Readiness) (events int16) {
	if r.Read {
		events |= unix.POLLIN | readNormal
	}
	if r.Write {
		events |= unix.POLLOUT | writeNormal
	}
	switch {
	case r.Err != nil:
		events |= unix.POLLERR | unix.POLLHUP
	case r.Over:
		events |= unix.POLLHUP
	}
	return events
}
