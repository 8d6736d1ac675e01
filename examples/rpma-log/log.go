// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/goverbs/goverbs/examples/internal/remote"
)

// Format: a log begins with magic and the offset of its end. At offset 64 follow the records, each aligned to 8: length
// (4 bytes), checksum of the bytes (4), bytes. All numbers are little-endian. Only data before the end is valid.
const (
	endAt     = 8
	firstAt   = 64
	headSize  = 8
	maxRecord = 64 << 10 // including its head
)

var magic = []byte("rpma-log")

// Log is a log in remote memory. Only one goroutine of one client may use it.
type Log struct {
	memory *remote.Memory
	end    uint64
}

// Open opens a log, or creates an empty one if the memory is all zeros.
func Open(ctx context.Context, m *remote.Memory) (*Log, error) {
	l := &Log{memory: m}
	head, err := m.Read(ctx, 0, firstAt)
	if err != nil {
		return nil, err
	}
	l.end = binary.LittleEndian.Uint64(head[endAt:])
	if bytes.Equal(head, make([]byte, firstAt)) {
		copy(m.Buffer(), magic)
		if err := m.Publish(ctx, 0, m.Buffer()[:len(magic)], endAt, number(firstAt)); err != nil {
			return nil, err
		}
		l.end = firstAt
		return l, nil
	}
	if bytes.HasPrefix(head, magic) && l.end == 0 { // its creator was killed before it wrote the end
		l.end = firstAt
	}
	if !bytes.HasPrefix(head, magic) || l.end < firstAt || l.end > m.Len() || l.end%8 != 0 {
		return nil, fmt.Errorf("the memory does not hold a log: it begins with %q", head[:2*endAt])
	}
	return l, nil
}

// number encodes a number for the memory.
func number(n uint64) (b [8]byte) {
	binary.LittleEndian.PutUint64(b[:], n)
	return b
}

// aligned rounds a size up to the alignment.
func aligned(n uint64) uint64 { return (n + 7) &^ 7 }

// Append appends a record. If the process ends before Append returns, the log has the complete record or none of it.
func (l *Log) Append(ctx context.Context, record []byte) error {
	size := headSize + uint64(len(record))
	if size > maxRecord || aligned(size) > l.memory.Len()-l.end {
		return fmt.Errorf("no room for a record of %d bytes", len(record))
	}
	b := l.memory.Buffer()[:size]
	binary.LittleEndian.PutUint32(b, uint32(len(record)))
	binary.LittleEndian.PutUint32(b[4:], crc32.ChecksumIEEE(record))
	copy(b[headSize:], record)
	end := l.end + aligned(size)
	if err := l.memory.Publish(ctx, l.end, b, endAt, number(end)); err != nil {
		return err
	}
	l.end = end
	return nil
}

// Read calls f with each record, beginning with the first. A record is valid until f returns.
func (l *Log) Read(ctx context.Context, f func(i int, record []byte) error) error {
	for i, at := 0, uint64(firstAt); at < l.end; i++ {
		head, err := l.memory.Read(ctx, at, headSize)
		if err != nil {
			return err
		}
		n, sum := uint64(binary.LittleEndian.Uint32(head)), binary.LittleEndian.Uint32(head[4:])
		if headSize+n > min(maxRecord, l.end-at) {
			return fmt.Errorf("record %d is damaged: %d bytes at %d", i, n, at)
		}
		record, err := l.memory.Read(ctx, at+headSize, n)
		if err != nil {
			return err
		}
		if crc32.ChecksumIEEE(record) != sum {
			return fmt.Errorf("record %d is damaged: its checksum is wrong", i)
		}
		if err := f(i, record); err != nil {
			return err
		}
		at += aligned(headSize + n)
	}
	return nil
}
