// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Peer is this side on a device. Memory regions and connections belong to it.
type Peer struct {
	device            *Device
	pd                *rdma.PD
	options           PeerOptions
	nativeFlush       bool
	nativeAtomicWrite bool
	odp               bool
	iWARP             bool
}

// PeerOptions change how a peer flushes and writes atomically. The zero value is compatible with librpma 1.3.0.
type PeerOptions struct {
	// ReadFlush makes the peer flush with 8-byte reads, and register memory for such flushes, even on a device with
	// native flush. Use it if the other side has a librpma before 1.3.0, or one built without native flush.
	ReadFlush bool
	// PlainAtomicWrite implements atomic writes by a fenced RDMA WRITE, even on a device with native atomic writes.
	PlainAtomicWrite bool
}

func (p *Peer) created() bool { return p != nil && p.pd != nil }

// NewPeer creates a peer on a device, which must stay open until the peer is closed.
//
// C: rpma_peer_new
func NewPeer(device *Device, o PeerOptions) (*Peer, error) {
	const op = "NewPeer"
	if !device.created() {
		return nil, invalid(op, "no device")
	}
	attr, err := device.QueryEx()
	if err != nil {
		return nil, failed(op, err)
	}
	p := &Peer{device: device, options: o, odp: odpCapable(attr), iWARP: device.Info().Transport == ibv.TRANSPORT_IWARP}
	const bothFlushes = capFlushGlobal | capFlushPersistent
	p.nativeFlush = attr.DeviceCapFlagsEx&bothFlushes == bothFlushes && !o.ReadFlush
	p.nativeAtomicWrite = attr.DeviceCapFlagsEx&capAtomicWrite != 0 && !o.PlainAtomicWrite
	if p.pd, err = device.AllocPD(); errors.Is(err, syscall.ENOMEM) { // the only errno that librpma reports here
		return nil, failedAs(op, ErrNoMemory, err)
	} else if err != nil {
		return nil, failed(op, err)
	}
	logInfo("new peer", "device", device.Name(), "native flush", p.nativeFlush, "native atomic write",
		p.nativeAtomicWrite, "on-demand paging", p.odp)
	return p, nil
}

// Close deletes the peer. Close its regions, connections and shared receive queues first.
//
// C: rpma_peer_delete
func (p *Peer) Close() error {
	const op = "Peer.Close"
	if !p.created() {
		return notCreated(op)
	}
	return failed(op, p.pd.Close())
}

// Device returns the peer's device.
func (p *Peer) Device() *Device {
	if !p.created() {
		return nil
	}
	return p.device
}

// PD returns the protection domain of the peer's regions and queue pairs. It belongs to the peer.
func (p *Peer) PD() *rdma.PD {
	if !p.created() {
		return nil
	}
	return p.pd
}

// NativeFlush reports whether the peer flushes natively rather than with 8-byte reads.
func (p *Peer) NativeFlush() bool { return p != nil && p.nativeFlush }

// NativeAtomicWrite reports whether the peer writes atomically with native atomic writes rather than RDMA WRITEs.
func (p *Peer) NativeAtomicWrite() bool { return p != nil && p.nativeAtomicWrite }

// ODPCapable reports whether a device supports on-demand paging for RDMA READ and WRITE on reliable connections.
//
// C: rpma_utils_ibv_context_is_odp_capable
func ODPCapable(device *rdma.Device) (bool, error) {
	if device == nil {
		return false, invalid("ODPCapable", "no device")
	}
	attr, err := device.QueryEx()
	if err != nil {
		return false, failed("ODPCapable", err)
	}
	return odpCapable(attr), nil
}

func odpCapable(attr *ibv.DeviceAttrEx) bool {
	const needed = ibv.ODP_SUPPORT_READ | ibv.ODP_SUPPORT_WRITE
	return attr.ODPCaps.GeneralCaps&ibv.ODP_SUPPORT != 0 &&
		attr.ODPCaps.PerTransportCaps.RCODPCaps&needed == needed
}

// access returns the access flags for a region's usage.
func (p *Peer) access(u Usage) (access ibv.AccessFlags) {
	if u&ReadSrc != 0 {
		access |= ibv.ACCESS_REMOTE_READ
	}
	if u&(ReadDst|WriteSrc|WriteDst|RecvDst) != 0 {
		access |= ibv.ACCESS_LOCAL_WRITE
	}
	if u&WriteDst != 0 || u&ReadDst != 0 && p.iWARP { // on iWARP, a read response is a write by the peer
		access |= ibv.ACCESS_REMOTE_WRITE
	}
	switch flush := u & (FlushVisibility | FlushPersistent); {
	case flush != 0 && !p.nativeFlush:
		access |= ibv.ACCESS_REMOTE_READ
	case flush != 0:
		if flush&FlushVisibility != 0 {
			access |= ibv.ACCESS_FLUSH_GLOBAL
		}
		if flush&FlushPersistent != 0 {
			access |= ibv.ACCESS_FLUSH_PERSISTENT
		}
	}
	return access
}

// register calls reg. If the device cannot pin the memory, such as a file on persistent memory, it calls reg again with
// on-demand paging.
func (p *Peer) register(u Usage, reg func(ibv.AccessFlags) (*rdma.MR, error)) (*rdma.MR, error) {
	access := p.access(u)
	mr, err := reg(access)
	if err != nil && p.odp && errors.Is(err, rdma.ErrNotSupported) {
		mr, err = reg(access | ibv.ACCESS_ON_DEMAND)
	}
	return mr, err
}

// PeerConfig is the configuration that one side sends to its peers.
type PeerConfig struct {
	// DirectWriteToPmem states that data is persistent once it has left the device, because processor caches do not
	// hold it back. Peers' flushes for persistence require it.
	//
	// C: rpma_peer_cfg_set_direct_write_to_pmem, rpma_peer_cfg_get_direct_write_to_pmem
	DirectWriteToPmem bool
}

// Descriptor returns the configuration for the peer: one byte, 0 or 1.
//
// C: rpma_peer_cfg_new, rpma_peer_cfg_delete, rpma_peer_cfg_set_direct_write_to_pmem
//
// C: rpma_peer_cfg_get_direct_write_to_pmem, rpma_peer_cfg_get_descriptor, rpma_peer_cfg_get_descriptor_size
func (c PeerConfig) Descriptor() [PeerConfigDescriptorSize]byte {
	if c.DirectWriteToPmem {
		return [...]byte{1}
	}
	return [...]byte{0}
}

// ParsePeerConfig parses a peer's descriptor, which is untrusted. Anything except a single byte 0 or 1 is an error.
//
// C: rpma_peer_cfg_from_descriptor
func ParsePeerConfig(descriptor []byte) (PeerConfig, error) {
	const op = "ParsePeerConfig"
	if len(descriptor) != PeerConfigDescriptorSize {
		return PeerConfig{}, invalid(op, "descriptor has %d bytes, want %d", len(descriptor),
			PeerConfigDescriptorSize)
	}
	if descriptor[0] > 1 {
		return PeerConfig{}, invalid(op, "descriptor is %#x, want 0 or 1", descriptor[0])
	}
	return PeerConfig{DirectWriteToPmem: descriptor[0] == 1}, nil
}
