// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/runtime"
)

// Device objects that the connection manager uses. It creates and destroys them as a program does, by record address,
// or through methods with the fabric's lock held.
type (
	Device    = device
	Context   = context
	PD        = pd
	ProgramQP = qp
	XRCD      = xrcd
)

// Constants common to all devices.
const (
	AckDelay     = ackDelay // code of the time within which an acknowledgement comes
	MaxReads     = maxReads
	MulticastQPN = multicastQPN
	PortNum      = portNum
	OCreate      = oCreate
)

// Objects, by the addresses of their records.

// Allocate returns zeroed memory for an object. The caller holds Fabric.mu.
func Allocate[T any](f *Engine) (*T, runtime.Errno) { return allocateOf[T](f) }

// AllocateList returns zeroed memory for n values that are not objects.
func AllocateList[T any](n int) ([]T, runtime.Errno)           { return allocateList[T](n) }
func Free[T any](v *T)                                         { free(v) }
func Enter[C any](record *C, object any)                       { enter(record, object) }
func Forget[C any](record *C)                                  { forget(record) }
func Find[T any, A abi.Address](address A) *T                  { return find[T](address) }
func Still[T any, A abi.Address](address A, object *T) bool    { return still(address, object) }
func Named(name func(int32) string) runtime.Func               { return named(name) }
func IsMulticast(gid [16]byte) bool                            { return isMulticast(gid) }
func DestroyChannel(of ibv.Ptr[ibv.CompChannel]) runtime.Errno { return destroyChannel(of) }
func DestroyCQ(of ibv.Ptr[ibv.CQ]) runtime.Errno               { return destroyCQ(of) }
func DestroyQP(of ibv.Ptr[ibv.QP]) runtime.Errno               { return destroyQP(of) }
func DestroySRQ(of ibv.Ptr[ibv.SRQ]) runtime.Errno             { return destroySRQ(of) }

func CreateChannel(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) { return createChannel(of) }
func CreateCQ(of ibv.Ptr[ibv.Context], entries int32, userContext uintptr, ch ibv.Ptr[ibv.CompChannel]) (uint64,
	runtime.Errno) {
	return createCQ(of, entries, userContext, ch, 0)
}

func CreateQPEx(c *Context, attr uint64) (uint64, runtime.Errno)  { return createQPEx(c, attr) }
func CreateSRQEx(c *Context, attr uint64) (uint64, runtime.Errno) { return createSRQEx(c, attr) }
func OpenXRCD(c *Context, attr uint64) (uint64, runtime.Errno)    { return openXRCD(c, attr) }

func (d *device) GUID() uint64 { return d.guid }
func (d *device) MTU() ibv.MTU { return d.mtu }
func (d *device) IsDown() bool { return d.down }

func (c *context) Address() ibv.Ptr[ibv.Context] { return c.address() }

// Close closes it, unless it has objects. The caller holds Fabric.mu.
func (c *context) Close() runtime.Errno { return c.close() }

// Dealloc frees the domain, unless it has objects. The caller holds Fabric.mu.
func (p *pd) Dealloc() runtime.Errno { return p.dealloc() }
func (p *pd) Record() *ibv.PD        { return p.record }
func (p *pd) IsOf(c *Context) bool   { return p.context == c }

// Close closes the domain, unless it has objects. The caller holds Fabric.mu.
func (x *xrcd) Close() runtime.Errno { return x.close() }
func (q *qp) Number() uint32         { return q.number }

// Attach makes it a member of a multicast group. The caller holds Fabric.mu.
func (q *qp) Attach(group [16]byte) runtime.Errno { return q.attach(group) }

// Detach ends the membership. The caller holds Fabric.mu.
func (q *qp) Detach(group [16]byte) runtime.Errno { return q.detach(group) }

// IsGone reports whether the device was taken away. The caller holds Fabric.mu.
func (d *device) IsGone() bool { return d.gone }
