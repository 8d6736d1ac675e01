// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// command is a buffer of an ioctl on a uverbs file: a header with attributes, and room for the data they point to.
// Commands are outside Go's heap, because the kernel reads addresses in them that the garbage collector would not see.
type command struct {
	buffer *commandBuffer
	used   uintptr // bytes of data
}

const (
	maxAttrs  = 16
	dataBytes = 4096 - unsafe.Sizeof(uapi.IBUverbsIoctlHdr{}) - maxAttrs*unsafe.Sizeof(uapi.IBUverbsAttr{})
)

type commandBuffer struct {
	header uapi.IBUverbsIoctlHdr
	attrs  [maxAttrs]uapi.IBUverbsAttr
	data   [dataBytes]byte
}

// commandPool keeps unused buffers.
type commandPool struct {
	space *runtime.Space
	mu    sync.Mutex
	free  []*commandBuffer
}

func (p *commandPool) get(object uapi.UverbsDefaultObjects, method uint16, driver uint32) (command, syscall.Errno) {
	p.mu.Lock()
	var b *commandBuffer
	if n := len(p.free); n > 0 {
		b, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if b == nil {
		at, err := p.space.Alloc(int(unsafe.Sizeof(*b)))
		if err != nil {
			return command{}, syscall.ENOMEM
		}
		b = (*commandBuffer)(at)
	} else {
		*b = commandBuffer{}
	}
	b.header = uapi.IBUverbsIoctlHdr{ObjectID: uint16(object), MethodID: method, DriverID: driver}
	return command{buffer: b}, 0
}

func (p *commandPool) put(c command) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, c.buffer)
}

// attr appends an attribute.
func (c *command) attr(id, length uint16, data uint64) *uapi.IBUverbsAttr {
	h := &c.buffer.header
	a := &c.buffer.attrs[h.NumAttrs]
	h.NumAttrs++
	*a = uapi.IBUverbsAttr{AttrID: id, Len: length, Flags: uapi.UVERBS_ATTR_F_MANDATORY}
	*a.Data() = data
	return a
}

// reserve returns zeroed memory for the data of an attribute.
func (c *command) reserve(size uintptr) unsafe.Pointer {
	at := unsafe.Pointer(&c.buffer.data[c.used])
	c.used += (size + 7) &^ 7
	return at
}

// input appends an attribute with a copy of v. The kernel takes values of up to 8 bytes out of the attribute itself.
func input[T any](c *command, id uint16, v *T) {
	size := unsafe.Sizeof(*v)
	if size <= 8 {
		var word uint64
		*(*T)(unsafe.Pointer(&word)) = *v
		c.attr(id, uint16(size), word)
		return
	}
	at := (*T)(c.reserve(size))
	*at = *v
	c.attr(id, uint16(size), uint64(uintptr(unsafe.Pointer(at))))
}

// output appends an attribute that the kernel fills in.
func output[T any](c *command, id uint16) *T {
	var v T
	at := (*T)(c.reserve(unsafe.Sizeof(v)))
	c.attr(id, uint16(unsafe.Sizeof(v)), uint64(uintptr(unsafe.Pointer(at))))
	return at
}

// run sends the command.
func (c *command) run(k Kernel, fd int32) syscall.Errno {
	h := &c.buffer.header
	h.Length = uint16(unsafe.Sizeof(*h) + uintptr(h.NumAttrs)*unsafe.Sizeof(uapi.IBUverbsAttr{}))
	return k.Ioctl(fd, uapi.RDMA_VERBS_IOCTL, unsafe.Pointer(h))
}

// none stands for a part that a command lacks.
type none struct{}

// write sends a command of the write interface by the method INVOKE_WRITE. In and Out are its structures; DriverIn and
// DriverOut those of the driver. none means that there is no such part.
func write[Out, DriverOut, In, DriverIn any](f *file, number uapi.IBUverbsWriteCmds, in *In, driver *DriverIn) (out Out,
	driverOut DriverOut, errno syscall.Errno) {
	c, errno := f.commands.get(uapi.UVERBS_OBJECT_DEVICE, uint16(uapi.UVERBS_METHOD_INVOKE_WRITE), f.driver)
	if errno != 0 {
		return out, driverOut, errno
	}
	defer f.commands.put(c)
	input(&c, uint16(uapi.UVERBS_ATTR_CORE_IN), in)
	outAt, driverAt := (*Out)(nil), (*DriverOut)(nil)
	if unsafe.Sizeof(out) > 0 {
		outAt = output[Out](&c, uint16(uapi.UVERBS_ATTR_CORE_OUT))
	}
	c.attr(uint16(uapi.UVERBS_ATTR_WRITE_CMD), 8, uint64(number))
	if unsafe.Sizeof(*driver) > 0 {
		input(&c, uapi.UVERBS_ATTR_UHW_IN, driver)
	}
	if unsafe.Sizeof(driverOut) > 0 {
		driverAt = output[DriverOut](&c, uapi.UVERBS_ATTR_UHW_OUT)
	}
	if errno = c.run(f.kernel, f.fd); errno != 0 {
		return out, driverOut, errno
	}
	if outAt != nil {
		out = *outAt
	}
	if driverAt != nil {
		driverOut = *driverAt
	}
	return out, driverOut, 0
}

// file is an open device file.
type file struct {
	kernel   Kernel
	commands *commandPool
	fd       int32
	driver   uint32
}
