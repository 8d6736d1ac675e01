// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// flowRule is a rule of flow steering.
type flowRule struct {
	context  *context
	record   *ibv.Flow
	counters *flowCounters // or nil
}

// flowCounters count packets and bytes of rules.
type flowCounters struct {
	context *context
	record  *ibv.Counters
	handle  uint32

	mu     sync.Mutex
	points []driver.CounterPoint // the last one first, as libmlx5 sends them; guarded by mu
	rules  int                   // with the counters; guarded by mu
}

// mostSpecs is the kernel's limit for a rule.
const mostSpecs = 10

// createFlow is the operation ibv_create_flow.
func (b *Backend) createFlow(qp, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	q, attr := find[queuePair](b, qp), ibv.Ptr[ibv.FlowAttr](address).Deref()
	if q == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	c := q.context
	d, ok := c.own.(driver.Flows)
	if !ok {
		return 0, syscall.EOPNOTSUPP
	}
	specs, n, errno := b.kernelSpecs(address+uint64(unsafe.Sizeof(*attr)), int(attr.NumOfSpecs))
	if errno != 0 {
		return 0, errno
	}
	record, errno := allocate[ibv.Flow](b)
	if errno != 0 {
		return 0, errno
	}
	in := append(driver.Bytes(&uapi.IBUverbsCreateFlow{QPHandle: q.record.QPBase.Handle,
		FlowAttr: uapi.IBUverbsFlowAttr{Type: uint32(attr.Type), Size: uint16(len(specs)), Priority: attr.Priority,
			NumOfSpecs: attr.NumOfSpecs, Port: attr.Port, Flags: uint32(attr.Flags)}}), specs...)
	var out uapi.IBUverbsCreateFlowResp
	send := func(driverIn, driverOut []byte) syscall.Errno {
		return c.Write(extended(uapi.IB_USER_VERBS_EX_CMD_CREATE_FLOW), in, driver.Bytes(&out), driverIn, driverOut)
	}
	if n == nil {
		errno = d.CreateFlow(nil, false, send)
	} else {
		errno = n.bind(func(points []driver.CounterPoint) syscall.Errno { return d.CreateFlow(points, true, send) })
	}
	if errno != 0 {
		free(b, record)
		return 0, errno
	}
	*record = ibv.Flow{Context: c.pointer(), Handle: out.FlowHandle}
	c.uses.Add(1)
	b.enter(addressOf(record), &flowRule{context: c, record: record, counters: n})
	return addressOf(record), 0
}

// kernelSpecs returns the kernel's form of a rule's n specs, and the counters in it, or nil.
func (b *Backend) kernelSpecs(at uint64, n int) (all []byte, counters *flowCounters, errno syscall.Errno) {
	if n > mostSpecs {
		return nil, nil, syscall.EINVAL
	}
	for range n {
		spec := ibv.Ptr[ibv.FlowSpec](at).Deref()
		h := spec.Hdr()
		own, errno := kernelSpec(spec)
		if errno != 0 {
			return nil, nil, errno
		}
		if h.Type == ibv.FLOW_SPEC_ACTION_COUNT {
			if counters != nil {
				return nil, nil, syscall.EINVAL
			}
			if counters = find[flowCounters](b, uint64(spec.FlowCount().Counters)); counters == nil {
				return nil, nil, syscall.EINVAL
			}
			own = append(own, driver.Bytes(&[2]uint32{counters.handle})...)
		}
		kind := h.Type
		if kind&^ibv.FLOW_SPEC_INNER == ibv.FLOW_SPEC_IPV4_EXT { // the kernel's only spec of IPv4
			kind = ibv.FLOW_SPEC_IPV4 | kind&ibv.FLOW_SPEC_INNER
		}
		head := uapi.IBUverbsFlowSpecHdr{Type: uint32(kind)}
		head.Size = uint16(int(unsafe.Sizeof(head)) + len(own))
		all = append(append(all, driver.Bytes(&head)...), own...)
		at += uint64(h.Size)
	}
	return all, counters, 0
}

// kernelSpec returns the part of the kernel's form of a spec that follows the header: the value and the mask of a
// filter, whose layouts are those of the program. Specs have the size of their structure.
func kernelSpec(s *ibv.FlowSpec) ([]byte, syscall.Errno) {
	var own []byte
	var size uintptr
	switch s.Hdr().Type &^ ibv.FLOW_SPEC_INNER {
	case ibv.FLOW_SPEC_ETH:
		own, size = filter(&s.Eth().Val, &s.Eth().Mask), unsafe.Sizeof(*s.Eth())
	case ibv.FLOW_SPEC_IPV4:
		own, size = filter(&s.IPv4().Val, &s.IPv4().Mask), unsafe.Sizeof(*s.IPv4())
	case ibv.FLOW_SPEC_IPV4_EXT:
		own, size = filter(&s.IPv4Ext().Val, &s.IPv4Ext().Mask), unsafe.Sizeof(*s.IPv4Ext())
	case ibv.FLOW_SPEC_IPV6:
		own, size = filter(&s.IPv6().Val, &s.IPv6().Mask), unsafe.Sizeof(*s.IPv6())
		const padding = unsafe.Offsetof(ibv.FlowIPv6Filter{}.HopLimit) + 1 // follows the last field
		own[padding] = 0
		if own[len(own)-1] != 0 {
			return nil, syscall.EOPNOTSUPP
		}
	case ibv.FLOW_SPEC_ESP:
		own, size = filter(&s.ESP().Val, &s.ESP().Mask), unsafe.Sizeof(*s.ESP())
	case ibv.FLOW_SPEC_TCP, ibv.FLOW_SPEC_UDP:
		own, size = filter(&s.TCPUDP().Val, &s.TCPUDP().Mask), unsafe.Sizeof(*s.TCPUDP())
	case ibv.FLOW_SPEC_VXLAN_TUNNEL:
		own, size = filter(&s.Tunnel().Val, &s.Tunnel().Mask), unsafe.Sizeof(*s.Tunnel())
	case ibv.FLOW_SPEC_GRE:
		own, size = filter(&s.GRE().Val, &s.GRE().Mask), unsafe.Sizeof(*s.GRE())
	case ibv.FLOW_SPEC_MPLS:
		own, size = filter(&s.MPLS().Val, &s.MPLS().Mask), unsafe.Sizeof(*s.MPLS())
	case ibv.FLOW_SPEC_ACTION_TAG:
		own, size = driver.Bytes(&[2]uint32{s.FlowTag().TagID}), unsafe.Sizeof(*s.FlowTag())
	case ibv.FLOW_SPEC_ACTION_DROP:
		size = unsafe.Sizeof(*s.Drop())
	case ibv.FLOW_SPEC_ACTION_COUNT:
		size = unsafe.Sizeof(*s.FlowCount())
	case ibv.FLOW_SPEC_ACTION_HANDLE: // IPsec
		return nil, syscall.EOPNOTSUPP
	}
	if size == 0 || uintptr(s.Hdr().Size) != size {
		return nil, syscall.EINVAL
	}
	return own, 0
}

func filter[T any](value, mask *T) []byte {
	return append(append([]byte(nil), driver.Bytes(value)...), driver.Bytes(mask)...)
}

// destroyFlow is the operation ibv_destroy_flow.
func (b *Backend) destroyFlow(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	f := find[flowRule](b, address)
	if f == nil {
		return uint64(syscall.EINVAL), 0
	}
	if _, errno := write[none](f.context, extended(uapi.IB_USER_VERBS_EX_CMD_DESTROY_FLOW),
		&uapi.IBUverbsDestroyFlow{FlowHandle: f.record.Handle}); errno != 0 {
		return uint64(errno), 0
	}
	b.forget(address)
	if f.counters != nil {
		f.counters.unbind()
	}
	f.context.uses.Add(-1)
	free(b, f.record)
	return 0, 0
}

// createCounters is the operation create_counters.
func (b *Backend) createCounters(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c, attr := find[context](b, of), ibv.Ptr[ibv.CountersInitAttr](address).Deref()
	if c == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	if _, ok := c.own.(driver.Flows); !ok || attr.CompMask != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_COUNTERS), uint16(uapi.UVERBS_METHOD_COUNTERS_CREATE))
	if errno != 0 {
		return 0, errno
	}
	defer c.Put(r)
	handle := r.Attr(uint16(uapi.UVERBS_ATTR_CREATE_COUNTERS_HANDLE), 0, 0)
	record, errno := allocate[ibv.Counters](b)
	if errno != 0 {
		return 0, errno
	}
	if errno := c.Send(&r); errno != 0 {
		free(b, record)
		return 0, errno
	}
	record.Context = c.pointer()
	c.uses.Add(1)
	b.enter(addressOf(record), &flowCounters{context: c, record: record, handle: uint32(*handle.Data())})
	return addressOf(record), 0
}

// destroyCounters is the operation destroy_counters.
func (b *Backend) destroyCounters(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	n := find[flowCounters](b, address)
	if n == nil {
		return uint64(syscall.EINVAL), 0
	}
	c := n.context
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_COUNTERS), uint16(uapi.UVERBS_METHOD_COUNTERS_DESTROY))
	if errno != 0 {
		return uint64(errno), 0
	}
	defer c.Put(r)
	r.Attr(uint16(uapi.UVERBS_ATTR_DESTROY_COUNTERS_HANDLE), 0, uint64(n.handle))
	if errno := c.Send(&r); errno != 0 {
		return uint64(errno), 0
	}
	b.forget(address)
	c.uses.Add(-1)
	free(b, n.record)
	return 0, 0
}

// attachCounters is the operation attach_counters_point_flow. The kernel gets the points with the first rule that has
// the counters.
func (b *Backend) attachCounters(address, attr, flow, _, _, _ uint64) (uint64, runtime.Errno) {
	n, of := find[flowCounters](b, address), ibv.Ptr[ibv.CounterAttachAttr](attr).Deref()
	if n == nil || of == nil {
		return uint64(syscall.EINVAL), 0
	}
	if flow != 0 || of.CompMask != 0 || !n.context.own.(driver.Flows).Counts(of.CounterDesc) {
		return uint64(syscall.EOPNOTSUPP), 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rules > 0 {
		return uint64(syscall.EBUSY), 0
	}
	n.points = append([]driver.CounterPoint{{Counter: of.CounterDesc, Index: of.Index}}, n.points...)
	return 0, 0
}

// bind creates a rule with the counters by create, whose argument is nil if the kernel has the points.
func (n *flowCounters) bind(create func([]driver.CounterPoint) syscall.Errno) (errno syscall.Errno) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.rules > 0:
		errno = create(nil)
	case len(n.points) == 0:
		return syscall.EINVAL
	default:
		errno = create(n.points)
	}
	if errno == 0 {
		n.rules++
	}
	return errno
}

func (n *flowCounters) unbind() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules--
}

// readCounters is the operation read_counters.
func (b *Backend) readCounters(address, to, count, flags, _, _ uint64) (uint64, runtime.Errno) {
	const size = unsafe.Sizeof(uint64(0))
	n, length := find[flowCounters](b, address), uint64(uint32(count))*uint64(size)
	if n == nil || to == 0 || length == 0 || length > 1<<16-1 {
		return uint64(syscall.EINVAL), 0
	}
	c := n.context
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_COUNTERS), uint16(uapi.UVERBS_METHOD_COUNTERS_READ))
	if errno != 0 {
		return uint64(errno), 0
	}
	defer c.Put(r)
	memory, err := b.space.Alloc(int(length)) // the program's may be in Go's heap
	if err != nil {
		return uint64(syscall.ENOMEM), 0
	}
	defer b.space.Free(memory)
	r.Attr(uint16(uapi.UVERBS_ATTR_READ_COUNTERS_HANDLE), 0, uint64(n.handle))
	r.Attr(uint16(uapi.UVERBS_ATTR_READ_COUNTERS_BUFF), uint16(length), uint64(uintptr(memory)))
	r.Attr(uint16(uapi.UVERBS_ATTR_READ_COUNTERS_FLAGS), 4, uint64(uint32(flags)))
	if errno := c.Send(&r); errno != 0 {
		return uint64(errno), 0
	}
	copy(listAt[byte](to, int(length)), unsafe.Slice((*byte)(memory), length))
	return 0, 0
}
