// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/rdma"
)

// MaxMaps is the maximum number of regions that a peer may map.
const MaxMaps = maxMaps

// ErrNotMapped means that the peer has mapped no memory at an offset.
var ErrNotMapped = fmt.Errorf("%w: the peer has mapped no memory there", syscall.EINVAL)

// errNoPlace means that the peer has no free entry for a mapping.
var errNoPlace = fmt.Errorf("%w: the peer accepts no more mappings", syscall.ENOMEM)

// RoomAt returns how many of n bytes can be written at an offset in one piece now.
func (r *RSocket) RoomAt(offset uint64, n int) (int, error) {
	at, err := r.at(offset)
	if err != nil {
		return 0, err
	}
	return int(min(uint64(r.roomHere(n, false)), uint64(at.length)-(offset-at.offset))), nil
}

// at returns the memory that the peer has mapped at an offset.
func (r *RSocket) at(offset uint64) (*mapped, error) {
	for i := range r.mapped {
		if m := &r.mapped[i]; offset >= m.offset && offset-m.offset < uint64(m.length) {
			return m, nil
		}
	}
	return nil, fmt.Errorf("offset %d: %w", offset, ErrNotMapped)
}

// PostAt writes a piece at an offset. It returns false if there is no room. The peer is not notified.
func (r *RSocket) PostAt(offset uint64, p Piece) (bool, error) {
	room, err := r.RoomAt(offset, p.Len())
	if err != nil || room < p.Len() || r.over {
		return false, err
	}
	to, _ := r.at(offset)
	r.sends.Reset()
	w := r.sends.Write(r.sendID(), to.address+offset-to.offset, to.key)
	if err := r.data(w, p); err != nil {
		return false, err
	}
	return true, r.post(w, r.mustSignal(p), p.Len())
}

// MayMap reports whether there is room to announce a mapping. It returns an error if the peer has no entry for it.
func (r *RSocket) MayMap(place int) (bool, error) {
	if place >= r.peer.maps {
		return false, fmt.Errorf("%w: its limit is %d", errNoPlace, r.peer.maps)
	}
	return !r.over && r.sent != r.credit && r.mayControl(), nil
}

// Map announces memory that the peer may write, starting at an offset. place is its entry in the peer's list, which can
// be reused for another announcement.
func (r *RSocket) Map(place int, offset uint64, mr *rdma.MR) error {
	m := mr.Region()
	entry := mapped{offset, target{m.Address, mr.RKey(), uint32(m.Length)}}
	at := r.peer.list.address + uint64(r.peer.list.length)*targetSize + uint64(place)*mappedSize
	r.sent++
	return r.postControl(word(opMap, uint32(place)), at, entry.marshal(r.peer.order()))
}
