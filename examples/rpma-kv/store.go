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

// Format: a store begins with magic. At offset 64 is a table of 8-byte slots, each 0 or the offset of a record. Slots
// are aligned to 8 and replaced atomically. After the table follow the records: length of the key (4 bytes), length of
// the value (4), checksum of both (4), 4 zero bytes, key, value. Records are aligned to 8. All numbers are
// little-endian.
const (
	tableAt   = 64
	slots     = 1024
	recordsAt = tableAt + 8*slots
	headSize  = 16
	room      = 64 << 10 // size of the table, and of the largest record
)

var magic = []byte("rpma-kv1")

// Store holds keys and values in remote memory. Only one goroutine of one client may use it. A new value uses new
// memory; the memory of old values is not reused.
type Store struct {
	memory *remote.Memory
	places map[string]place
	slot   uint64 // first free slot
	free   uint64 // offset of the next record
}

// place is the location of a key.
type place struct {
	slot, at    uint64
	key, length uint64 // sizes of the key and the value
}

// Open reads the keys of a store, or creates an empty store if the memory is all zeros.
func Open(ctx context.Context, m *remote.Memory) (*Store, error) {
	s := &Store{memory: m, places: map[string]place{}, free: recordsAt}
	head, err := m.Read(ctx, 0, tableAt)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(head, make([]byte, tableAt)) {
		return s, m.Publish(ctx, tableAt, m.Buffer()[:0], 0, [8]byte(magic))
	}
	if !bytes.HasPrefix(head, magic) {
		return nil, fmt.Errorf("the memory does not hold a store: it begins with %q", head[:8])
	}
	table, err := m.Read(ctx, tableAt, 8*slots)
	if err != nil {
		return nil, err
	}
	table = bytes.Clone(table)
	for ; s.slot < slots; s.slot++ {
		at := binary.LittleEndian.Uint64(table[8*s.slot:])
		if at == 0 {
			break
		}
		key, p, err := s.record(ctx, s.slot, at)
		if err != nil {
			return nil, err
		}
		s.places[key] = p
		s.free = max(s.free, aligned(at+headSize+p.key+p.length))
	}
	return s, nil
}

func aligned(n uint64) uint64 { return (n + 7) &^ 7 }

// record reads the key of a record and checks the record.
func (s *Store) record(ctx context.Context, slot, at uint64) (key string, p place, err error) {
	damaged := fmt.Errorf("the record of slot %d, at %d, is damaged", slot, at)
	if at < recordsAt || at > s.memory.Len()-headSize || at%8 != 0 {
		return "", p, damaged
	}
	head, err := s.memory.Read(ctx, at, headSize)
	if err != nil {
		return "", p, err
	}
	p = place{slot: slot, at: at, key: uint64(binary.LittleEndian.Uint32(head)),
		length: uint64(binary.LittleEndian.Uint32(head[4:]))}
	sum, sizes := binary.LittleEndian.Uint32(head[8:]), crc32.ChecksumIEEE(head[:8])
	size := p.key + p.length
	if size > room-headSize || size > s.memory.Len()-at-headSize {
		return "", p, damaged
	}
	both, err := s.memory.Read(ctx, at+headSize, size)
	if err != nil {
		return "", p, err
	}
	if crc32.Update(sizes, crc32.IEEETable, both) != sum {
		return "", p, damaged
	}
	return string(both[:p.key]), p, nil
}

// Get returns the value of a key and whether the key exists. It reads remote memory once.
func (s *Store) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	p, ok := s.places[key]
	if !ok {
		return nil, false, nil
	}
	b, err := s.memory.Read(ctx, p.at+headSize+p.key, p.length)
	if err != nil {
		return nil, false, err
	}
	return bytes.Clone(b), true, nil
}

// Keys returns the number of keys.
func (s *Store) Keys() int { return len(s.places) }

// Put sets the value of a key. If the process ends before Put returns, the key has the old or the new value.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	p := place{slot: s.slot, at: s.free, key: uint64(len(key)), length: uint64(len(value))}
	if old, ok := s.places[key]; ok {
		p.slot = old.slot
	}
	size := headSize + p.key + p.length
	if p.slot == slots || size > room || aligned(size) > s.memory.Len()-s.free {
		return fmt.Errorf("no room for %q with %d bytes", key, len(value))
	}
	b := s.memory.Buffer()[:size]
	clear(b[:headSize])
	copy(b[headSize:], key)
	copy(b[headSize+len(key):], value)
	binary.LittleEndian.PutUint32(b, uint32(len(key)))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(value)))
	binary.LittleEndian.PutUint32(b[8:], crc32.Update(crc32.ChecksumIEEE(b[:8]), crc32.IEEETable, b[headSize:]))
	var to [8]byte
	binary.LittleEndian.PutUint64(to[:], p.at)
	if err := s.memory.Publish(ctx, p.at, b, tableAt+8*p.slot, to); err != nil {
		return err
	}
	if p.slot == s.slot {
		s.slot++
	}
	s.places[key] = p
	s.free += aligned(size)
	return nil
}
