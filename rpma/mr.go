// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// MR is registered memory of this side.
type MR struct {
	mr      *rdma.MR
	usage   Usage
	region  rdma.Region
	bytes   []byte
	file    *File // the mapped file, or nil
	closing atomic.Bool
}

func (m *MR) created() bool { return m != nil && m.mr != nil }

// RegMR registers Go memory, which is pinned until the region is closed.
//
// C: rpma_mr_reg
func (p *Peer) RegMR(b []byte, usage Usage) (*MR, error) {
	return p.newMR("Peer.RegMR", uint64(len(b)), b, usage,
		func(access ibv.AccessFlags) (*rdma.MR, error) { return p.pd.RegMR(b, access) })
}

// RegBuffer registers memory outside Go's heap. The buffer cannot be closed before the region.
//
// C: rpma_mr_reg
func (p *Peer) RegBuffer(b *rdma.Buffer, usage Usage) (*MR, error) {
	if b == nil || b.Len() == 0 {
		return nil, invalid("Peer.RegBuffer", "no memory")
	}
	return p.newMR("Peer.RegBuffer", uint64(b.Len()), b.Bytes(), usage,
		func(access ibv.AccessFlags) (*rdma.MR, error) { return p.pd.RegBuffer(b, access) })
}

// RegAddress registers memory at an address, such as memory of another library or a mapping. It must stay mapped until
// the region is closed. The region's Bytes method returns nil.
//
// C: rpma_mr_reg
func (p *Peer) RegAddress(address uintptr, length uint64, usage Usage) (*MR, error) {
	if address == 0 {
		return nil, invalid("Peer.RegAddress", "no memory")
	}
	return p.newMR("Peer.RegAddress", length, nil, usage, func(access ibv.AccessFlags) (*rdma.MR, error) {
		return p.pd.RegAddress(address, length, uint64(address), access)
	})
}

// newMR registers memory for the method op.
func (p *Peer) newMR(op string, length uint64, b []byte, usage Usage,
	reg func(ibv.AccessFlags) (*rdma.MR, error)) (*MR, error) {
	switch {
	case !p.created():
		return nil, notCreated(op)
	case length == 0:
		return nil, invalid(op, "no memory")
	case usage == 0:
		return nil, invalid(op, "no usage")
	}
	mr, err := p.register(usage, reg)
	if err != nil {
		if p.nativeFlush && usage&FlushPersistent != 0 && errors.Is(err, syscall.EINVAL) {
			return nil, &Error{Op: op, Code: ErrProvider, Err: err,
				Reason: "the device flushes natively, and may accept only persistent memory for FlushPersistent; a " +
					"software device accepts all with soft.DeviceOptions.Persistent"}
		}
		return nil, failed(op, err)
	}
	return &MR{mr: mr, usage: usage, region: mr.Region(), bytes: b}, nil
}

// Close deregisters the memory. No operation that uses it may be in progress, on this side or at a peer.
//
// C: rpma_mr_dereg
func (m *MR) Close() error {
	if !m.created() {
		return notCreated("MR.Close")
	}
	m.closing.Store(true) // rejects new operations
	if err := m.mr.Close(); err != nil {
		m.closing.Store(false)
		return failed("MR.Close", err)
	}
	m.file.removeRegion(m)
	return nil
}

// Bytes returns the memory, or nil if it was registered by address. Peers may write to it concurrently.
//
// C: rpma_mr_get_ptr
func (m *MR) Bytes() []byte {
	if m == nil {
		return nil
	}
	return m.bytes
}

// Address returns the address of the first byte.
//
// C: rpma_mr_get_ptr
func (m *MR) Address() uint64 {
	if m == nil {
		return 0
	}
	return m.region.Address
}

// Len returns the size in bytes.
//
// C: rpma_mr_get_size
func (m *MR) Len() uint64 {
	if m == nil {
		return 0
	}
	return m.region.Length
}

// Usage returns the usage with which the memory was registered.
func (m *MR) Usage() Usage {
	if m == nil {
		return 0
	}
	return m.usage
}

// RDMA returns the region as an object of package rdma. It belongs to the MR.
func (m *MR) RDMA() *rdma.MR {
	if m == nil {
		return nil
	}
	return m.mr
}

// Descriptor returns the data that a peer needs to access the region: address, length, key and usage, little-endian.
//
// C: rpma_mr_get_descriptor, rpma_mr_get_descriptor_size
func (m *MR) Descriptor() (d [MRDescriptorSize]byte) {
	if !m.created() {
		return d
	}
	binary.LittleEndian.PutUint64(d[0:], m.region.Address)
	binary.LittleEndian.PutUint64(d[8:], m.region.Length)
	binary.LittleEndian.PutUint32(d[16:], m.mr.RKey())
	d[20] = byte(m.usage)
	return d
}

// Advise announces that length bytes at an offset of a region with on-demand paging will be used soon. The error is
// ErrNotSupported if the device does not support such advice, and ErrInvalid if it rejects the range or the advice.
//
// C: rpma_mr_advise
func (m *MR) Advise(offset, length uint64, advice ibv.IBUverbsAdviseMRAdvice, flags ibv.IBUverbsAdviseMRFlag) error {
	const op = "MR.Advise"
	if !m.created() {
		return notCreated(op)
	}
	sge, err := m.entry(op, offset, length)
	if err != nil {
		return err
	}
	err = m.mr.PD().Advise(advice, flags, []ibv.SGE{sge})
	switch {
	case errors.Is(err, rdma.ErrNotSupported):
		return failedAs(op, ErrNotSupported, err)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EFAULT):
		return failedAs(op, ErrInvalid, err)
	}
	return failed(op, err)
}

// maxMessage is the maximum transfer of an RDMA operation.
const maxMessage = 1 << 31

// entry returns the scatter/gather entry of a part of the region.
func (m *MR) entry(op string, offset, length uint64) (ibv.SGE, error) {
	if !m.has(offset, length) {
		return ibv.SGE{}, m.outOfRange(op, offset, length)
	}
	return m.part(offset, length), nil
}

// has reports whether the region is open, contains the range, and the range is short enough for one operation.
func (m *MR) has(offset, length uint64) bool {
	return length <= maxMessage && inside(offset, length, m.region.Length) && !m.closing.Load()
}

// part returns the entry for a range for which has has returned true.
func (m *MR) part(offset, length uint64) ibv.SGE {
	return ibv.SGE{Addr: m.region.Address + offset, Length: uint32(length), LKey: m.region.LKey}
}

// inside reports whether memory of size bytes contains length bytes at an offset.
func inside(offset, length, size uint64) bool { return offset <= size && length <= size-offset }

func (m *MR) outOfRange(op string, offset, length uint64) error {
	if m.closing.Load() {
		return closed(op + ": the region")
	}
	if length > maxMessage {
		return tooLong(op, length)
	}
	return invalid(op, "%d bytes at offset %d exceed the region's %d bytes", length, offset, m.region.Length)
}

func tooLong(op string, length uint64) error {
	return invalid(op, "%d bytes exceed the maximum transfer of %d", length, uint64(maxMessage))
}

// RemoteMR is a peer's memory region. It is a value and need not be closed.
//
// C: rpma_mr_remote_delete
type RemoteMR struct {
	address uint64
	length  uint64
	rkey    uint32
	usage   Usage
}

// ParseRemoteMR parses the descriptor of a peer's region. The descriptor is untrusted: a wrong size, no usage, no
// memory, or a range that exceeds the address space is an error. Only an operation shows whether the peer really grants
// the usage.
//
// C: rpma_mr_remote_from_descriptor
func ParseRemoteMR(descriptor []byte) (*RemoteMR, error) {
	const op = "ParseRemoteMR"
	if len(descriptor) != MRDescriptorSize {
		return nil, invalid(op, "descriptor has %d bytes, want %d", len(descriptor), MRDescriptorSize)
	}
	m := &RemoteMR{
		address: binary.LittleEndian.Uint64(descriptor[0:]),
		length:  binary.LittleEndian.Uint64(descriptor[8:]),
		rkey:    binary.LittleEndian.Uint32(descriptor[16:]),
		usage:   Usage(descriptor[20]),
	}
	switch {
	case m.usage == 0:
		return nil, invalid(op, "descriptor has no usage")
	case m.length == 0:
		return nil, invalid(op, "descriptor has length or address 0")
	case m.length-1 > math.MaxUint64-m.address:
		return nil, invalid(op, "descriptor has %d bytes at %#x, which exceeds the address space",
			m.length, m.address)
	}
	return m, nil
}

// String describes the memory without its key, such as "remote MR of 4096 bytes at 0x7f0000001000
// (WriteDst|FlushVisibility)".
func (m *RemoteMR) String() string {
	if m == nil {
		return "no remote MR"
	}
	return fmt.Sprintf("remote MR of %d bytes at %#x (%v)", m.length, m.address, m.usage)
}

// Len returns the size in bytes.
//
// C: rpma_mr_remote_get_size
func (m *RemoteMR) Len() uint64 {
	if m == nil {
		return 0
	}
	return m.length
}

// Usage returns the usage with which the peer registered the memory.
func (m *RemoteMR) Usage() Usage {
	if m == nil {
		return 0
	}
	return m.usage
}

// FlushTypes returns the flush types that the region supports: FlushVisibility, FlushPersistent, both or 0.
//
// C: rpma_mr_remote_get_flush_type
func (m *RemoteMR) FlushTypes() Usage {
	if m == nil {
		return 0
	}
	return m.usage & (FlushVisibility | FlushPersistent)
}

// outOfRange returns the error for a range that exceeds the region.
func (m *RemoteMR) outOfRange(op string, offset, length uint64) error {
	return invalid(op, "%d bytes at offset %d exceed the peer's region of %d bytes", length, offset, m.length)
}
