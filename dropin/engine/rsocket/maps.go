// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"golang.org/x/sys/unix"
)

// mapping is memory of the program that the peer may write at offsets.
type mapping struct {
	address, length uint64
	offset          int64
	announced       bool // to the peer; otherwise registered for local use (PROT_NONE), which needs nothing here
}

// mapMemory implements riomap. Offset -1 requests any free offset; the address is one.
func (k *socket) mapMemory(address, length uint64, access int, offset int64) (int, error) {
	c := k.conn.Load()
	if c == nil || access&^unix.PROT_WRITE != 0 || length == 0 || offset < -1 {
		return 0, unix.EINVAL
	}
	if offset == -1 {
		offset = int64(address)
	}
	m := mapping{address, length, offset, access&unix.PROT_WRITE != 0}
	if m.announced {
		if err := c.MapAddress(uintptr(address), length, offset); err != nil {
			return 0, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.maps = append(k.maps, m)
	return int(offset), nil
}

// unmapMemory implements riounmap.
func (k *socket) unmapMemory(address, length uint64) error {
	c := k.conn.Load()
	k.mu.Lock()
	var found *mapping
	for i, m := range k.maps {
		if m.address == address && m.length == length {
			found = &m
			k.maps = append(k.maps[:i:i], k.maps[i+1:]...)
			break
		}
	}
	k.mu.Unlock()
	switch {
	case found == nil:
		return unix.EINVAL
	case !found.announced:
		return nil
	}
	return c.Unmap(found.offset)
}

// writeAt implements riowrite. WriteAt waits for the send queue even on a nonblocking socket, but only for a short
// time.
func (k *socket) writeAt(p []byte, offset int64, flags int) *call {
	return &call{waits: []awaited{{k, unix.POLLOUT}}, try: func(interrupted error) (int, error) {
		c, err := k.stream()
		switch {
		case err == unix.EAGAIN && k.waits(flags) && interrupted == nil:
			return 0, errWait
		case err == unix.EAGAIN && interrupted != nil:
			return 0, interrupted
		case err != nil:
			return 0, err
		}
		n, err := c.WriteAt(p, offset)
		if n > 0 {
			return n, nil
		}
		return 0, err
	}}
}
