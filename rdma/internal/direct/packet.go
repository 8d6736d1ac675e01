// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// Packets describes the requests of a raw packet queue pair.
type Packets struct {
	Index uint32 // by which completions of receives name the queue pair
	// Headers is the number of bytes at the start of each packet that requests contain themselves: 0 or MinHeaders.
	Headers   uint32
	Checksums bool // the device can compute checksums
	// MaxTSOHeader and MaxTSO limit the header and the data of a request that the device segments.
	MaxTSOHeader, MaxTSO uint32
}

// MinHeaders is the number of bytes that most devices require in requests: those of an Ethernet header with a tag.
const MinHeaders = 18

const (
	minTSOHeader = 14 // an Ethernet header
	headersStart = 2  // bytes of headers in the first units of the segment
	ethernet     = uint32(unsafe.Sizeof(mlx5dv.MLX5WQEEthSeg{}))
)

// checksummed reports whether a request's flags are valid, and sets those of its segment.
func (p *Packets) checksummed(s *mlx5dv.MLX5WQEEthSeg, flags ibv.SendFlags) bool {
	*s = mlx5dv.MLX5WQEEthSeg{}
	if flags&ibv.SEND_IP_CSUM != 0 {
		s.CSFlags = mlx5dv.MLX5_ETH_WQE_L3_CSUM | mlx5dv.MLX5_ETH_WQE_L4_CSUM
		return p.Checksums
	}
	return true
}

// size returns the size of the segment of a packet that is not segmented.
func (p *Packets) size() uintptr { return uintptr(ethernet/2+p.Headers) &^ (unit - 1) }

// packet writes the Ethernet segment of a request, and returns the place after it, the remaining entries, and the bytes
// of the first of them that the segment contains.
func (q *sendQueue) packet(at unsafe.Pointer, w *ibv.SendWR, list []ibv.SGE) (end unsafe.Pointer, rest []ibv.SGE,
	skip uint32, errno int32) {
	p, s := q.packets, (*mlx5dv.MLX5WQEEthSeg)(at)
	switch {
	case w.Opcode != ibv.WR_SEND && w.Opcode != ibv.WR_TSO, !p.checksummed(s, w.SendFlags):
		return at, nil, 0, einval
	case w.Opcode == ibv.WR_TSO:
		t, total := w.TSO(), uint64(0)
		for i := range list {
			total += uint64(list[i].Length)
		}
		if total > uint64(p.MaxTSO) || !p.segmentable(t.HdrSz) {
			return at, nil, 0, einval
		}
		end, _ = q.segmented(s, unsafe.Slice(ibv.Ptr[byte](t.Hdr).Deref(), t.HdrSz), t.MSS)
		return end, list, 0, 0
	case len(list) == 0:
		return at, nil, 0, einval
	}
	used, skip, ok := p.headers(s, len(list), func(i int) (uintptr, uint64) {
		return uintptr(list[i].Addr), uint64(list[i].Length)
	})
	if !ok {
		return at, nil, 0, einval
	}
	return unsafe.Add(at, p.size()), list[used:], skip, 0
}

// headers copies the headers of a packet in n buffers to its segment. It returns how many buffers the segment contains,
// and how many bytes of the next one, or false if the packet is too short.
func (p *Packets) headers(s *mlx5dv.MLX5WQEEthSeg, n int, buffer func(i int) (address uintptr, length uint64)) (used int,
	skip uint32, ok bool) {
	to := unsafe.Slice(&s.InlineHdrStart[0], p.Headers)
	for used < n && len(to) > 0 {
		address, length := buffer(used)
		count := copy(to, unsafe.Slice(ibv.Ptr[byte](address).Deref(), min(length, uint64(len(to)))))
		to = to[count:]
		if uint64(count) < length {
			skip = uint32(count)
			break
		}
		used++
	}
	s.InlineHdrSz = be16(uint16(p.Headers))
	return used, skip, len(to) == 0
}

// segmentable reports whether a request may have a header of a size.
func (p *Packets) segmentable(size uint16) bool {
	return size >= minTSOHeader && uint32(size) <= p.MaxTSOHeader
}

// segmented completes the segment of a request that the device divides into packets with a header and mss bytes of data.
// It returns the place after it and its size in units.
func (q *sendQueue) segmented(s *mlx5dv.MLX5WQEEthSeg, header []byte, mss uint16) (end unsafe.Pointer, units uint32) {
	s.MSS, s.InlineHdrSz = be16(mss), be16(uint16(len(header)))
	q.put(unsafe.Pointer(&s.InlineHdrStart), header)
	size := uintptr(ethernet/2) + (uintptr(len(header)-headersStart)+unit-1)&^(unit-1)
	if end = unsafe.Add(unsafe.Pointer(s), size); uintptr(end) > uintptr(q.end) {
		end = unsafe.Add(end, -int(uintptr(q.end)-uintptr(q.first)))
	}
	return end, uint32(size / unit)
}

// packet begins a raw packet, or with a header one that the device divides into packets.
func (b *Builder) packet(h head, header []byte, mss uint16) {
	q := b.q
	at := b.begin(h)
	if at == nil {
		return
	}
	p, s := q.packets, (*mlx5dv.MLX5WQEEthSeg)(at)
	switch {
	case !p.checksummed(s, h.flags), header != nil && !p.segmentable(uint16(min(len(header), 1<<16-1))):
		b.Fail(syscall.EINVAL)
	case header != nil:
		b.advance(q.segmented(s, header, mss))
	default:
		b.headers = p.Headers > 0
		b.advance(unsafe.Add(at, p.size()), uint32(p.size()/unit))
	}
}

// TSO begins a request that the device divides into packets with a header and mss bytes of data.
func (b *Builder) TSO(x *ibv.QPEx, header []byte, mss uint16) {
	if b.q.packets == nil || header == nil {
		b.Fail(syscall.EINVAL)
		return
	}
	b.packet(next(x, ibv.WR_TSO), header, mss)
}

// takeHeaders copies the headers of the packet in progress, if they belong to its request, and returns what remains of
// n buffers, or false after an error.
func (b *Builder) takeHeaders(n int, buffer func(i int) (uintptr, uint64)) (used int, skip uint32, ok bool) {
	if !b.headers {
		return 0, 0, true
	}
	used, skip, ok = b.q.packets.headers((*mlx5dv.MLX5WQEEthSeg)(unsafe.Add(b.p.control, unit)), n, buffer)
	if !ok {
		b.Fail(syscall.EINVAL)
	}
	return used, skip, ok
}
