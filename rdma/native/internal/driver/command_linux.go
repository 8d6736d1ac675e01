// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package driver

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// Kernel is the part of native.Kernel that drivers use.
type Kernel interface {
	Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno
	Mmap(fd int32, offset int64, length int) ([]byte, syscall.Errno)
	Munmap(b []byte) syscall.Errno
}

// File is an open device file.
type File struct {
	Kernel   Kernel
	Commands *Commands
	FD       int32
	Driver   uint32 // uapi.RDMADriverID
	Core     Core
}

// Request is a buffer of an ioctl on a uverbs file: a header with attributes, and room for the data they point to.
// Requests are outside Go's heap, because the kernel reads addresses in them that the garbage collector would not see.
type Request struct {
	buffer *buffer
	used   uintptr // bytes of data
}

const (
	maxAttrs  = 16
	dataBytes = 4096 - unsafe.Sizeof(uapi.IBUverbsIoctlHdr{}) - maxAttrs*unsafe.Sizeof(uapi.IBUverbsAttr{})
)

type buffer struct {
	header uapi.IBUverbsIoctlHdr
	attrs  [maxAttrs]uapi.IBUverbsAttr
	data   [dataBytes]byte
}

// Commands keeps unused buffers of requests.
type Commands struct {
	Space *runtime.Space
	mu    sync.Mutex
	free  []*buffer
}

// Request returns an empty request for a method of an object. Release it with Put.
func (f *File) Request(object, method uint16) (Request, syscall.Errno) {
	p := f.Commands
	p.mu.Lock()
	var b *buffer
	if n := len(p.free); n > 0 {
		b, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if b == nil {
		at, err := p.Space.Alloc(int(unsafe.Sizeof(*b)))
		if err != nil {
			return Request{}, syscall.ENOMEM
		}
		b = (*buffer)(at)
	}
	b.header = uapi.IBUverbsIoctlHdr{ObjectID: object, MethodID: method, DriverID: f.Driver}
	return Request{buffer: b}, 0
}

// Put releases a request, which may be empty.
func (f *File) Put(r Request) {
	if r.buffer == nil {
		return
	}
	p := f.Commands
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, r.buffer)
}

// Attr appends an attribute.
func (r *Request) Attr(id, length uint16, data uint64) *uapi.IBUverbsAttr {
	h := &r.buffer.header
	a := &r.buffer.attrs[h.NumAttrs]
	h.NumAttrs++
	*a = uapi.IBUverbsAttr{AttrID: id, Len: length, Flags: uapi.UVERBS_ATTR_F_MANDATORY}
	*a.Data() = data
	return a
}

// Input appends an attribute with a copy of b. The kernel takes values of up to 8 bytes out of the attribute itself.
func (r *Request) Input(id uint16, b []byte) {
	if len(b) <= 8 {
		var word [8]byte
		copy(word[:], b)
		r.Attr(id, uint16(len(b)), binary.NativeEndian.Uint64(word[:]))
		return
	}
	copy(r.place(id, len(b)), b)
}

// Output appends an attribute that the kernel fills in, and returns its memory, which is zero.
func (r *Request) Output(id uint16, size int) []byte {
	at := r.place(id, size)
	clear(at)
	return at
}

// place appends an attribute with data, and returns the memory for it, which an earlier request may have used.
func (r *Request) place(id uint16, size int) []byte {
	at := r.buffer.data[r.used:][:size:size]
	r.used += (uintptr(size) + 7) &^ 7
	r.Attr(id, uint16(size), uint64(uintptr(unsafe.Pointer(unsafe.SliceData(at)))))
	return at
}

// Send sends the request.
func (f *File) Send(r *Request) syscall.Errno {
	h := &r.buffer.header
	h.Length = uint16(unsafe.Sizeof(*h) + uintptr(h.NumAttrs)*unsafe.Sizeof(uapi.IBUverbsAttr{}))
	return f.Kernel.Ioctl(f.FD, uapi.RDMA_VERBS_IOCTL, unsafe.Pointer(h))
}

// Bytes returns the memory of a structure.
func Bytes[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// Write sends a command of the write interface by the method INVOKE_WRITE. in and out are its structures, driverIn and
// driverOut those of the driver. Empty ones are not sent. out and driverOut are filled in unless Write fails.
func (f *File) Write(number uapi.IBUverbsWriteCmds, in, out, driverIn, driverOut []byte) syscall.Errno {
	r, errno := f.Request(uint16(uapi.UVERBS_OBJECT_DEVICE), uint16(uapi.UVERBS_METHOD_INVOKE_WRITE))
	if errno != 0 {
		return errno
	}
	defer f.Put(r)
	r.Input(uint16(uapi.UVERBS_ATTR_CORE_IN), in)
	var outAt, driverAt []byte
	if len(out) > 0 {
		outAt = r.Output(uint16(uapi.UVERBS_ATTR_CORE_OUT), len(out))
	}
	r.Attr(uint16(uapi.UVERBS_ATTR_WRITE_CMD), 8, uint64(number))
	if len(driverIn) > 0 {
		r.Input(uapi.UVERBS_ATTR_UHW_IN, driverIn)
	}
	if len(driverOut) > 0 {
		driverAt = r.Output(uapi.UVERBS_ATTR_UHW_OUT, len(driverOut))
	}
	if errno := f.Send(&r); errno != 0 {
		return errno
	}
	copy(out, outAt)
	copy(driverOut, driverAt)
	return 0
}

// Doorbell returns a command that wakes a driver whose send queues are in memory: a post of no requests.
func (f *File) Doorbell(qpHandle uint32) (Request, syscall.Errno) {
	d, errno := f.Request(uint16(uapi.UVERBS_OBJECT_DEVICE), uint16(uapi.UVERBS_METHOD_INVOKE_WRITE))
	if errno != 0 {
		return d, errno
	}
	d.Input(uint16(uapi.UVERBS_ATTR_CORE_IN), Bytes(&uapi.IBUverbsPostSend{QPHandle: qpHandle,
		WQESize: uint32(unsafe.Sizeof(uapi.IBUverbsSendWR{}))}))
	d.Output(uint16(uapi.UVERBS_ATTR_CORE_OUT), int(unsafe.Sizeof(uapi.IBUverbsPostSendResp{})))
	d.Attr(uint16(uapi.UVERBS_ATTR_WRITE_CMD), 8, uint64(uapi.IB_USER_VERBS_CMD_POST_SEND))
	return d, 0
}
