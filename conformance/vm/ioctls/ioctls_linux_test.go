// SPDX-License-Identifier: BSD-2-Clause

package ioctls

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ioctls"
	"github.com/goverbs/goverbs/generated/uapi"
)

// rxe is Soft-RoCE.
var rxe = Device{uapi.UVERBS_OBJECT_XRCD, uapi.UVERBS_OBJECT_WQ, uapi.UVERBS_OBJECT_RWQ_IND_TBL,
	uapi.UVERBS_OBJECT_FLOW, uapi.UVERBS_OBJECT_FLOW_ACTION, uapi.UVERBS_OBJECT_DM, uapi.UVERBS_OBJECT_COUNTERS, uapi.UVERBS_OBJECT_DMAH,
	uapi.UVERBS_OBJECT_DMABUF}

// siw is Soft-iWARP.
var siw = append(Device{uapi.UVERBS_OBJECT_AH, uapi.UVERBS_OBJECT_MW}, rxe...)

// tested returns the guest's device, and the number of its driver.
func tested() (Device, uapi.RDMADriverID) {
	if testbed.IWARP() {
		return siw, uapi.RDMA_DRIVER_SIW
	}
	return rxe, uapi.RDMA_DRIVER_RXE
}

// file is a device file with objects for requests to name.
type file struct {
	fd      int
	driver  uint32
	page    []byte // outside the heap: requests, and the data that attributes point to
	objects map[uapi.UverbsDefaultObjects]uint64
	null    int // a file descriptor that is no object
}

const (
	dataAt  = 8192
	unbound = 0x1000 // an address that is never mapped
)

// attr is an attribute as the kernel reads it.
type attr struct {
	id, length uint16
	flags      uapi.UVERBSAttrFlags
	reserved   uint16
	data       uint64
}

// sentinel is an attribute that no method has. The kernel processes attributes in order, so its error shows that the
// ones before it were accepted, and prevents the method from running.
var sentinel = attr{id: 0x0fff, flags: uapi.UVERBS_ATTR_F_MANDATORY}

const reachedSentinel = syscall.EPROTONOSUPPORT

// send sends a request.
func (f *file) send(object uapi.UverbsDefaultObjects, method uint16, attrs ...attr) syscall.Errno {
	h := (*uapi.IBUverbsIoctlHdr)(unsafe.Pointer(&f.page[0]))
	size := unsafe.Sizeof(*h) + uintptr(len(attrs))*unsafe.Sizeof(uapi.IBUverbsAttr{})
	*h = uapi.IBUverbsIoctlHdr{ObjectID: uint16(object), MethodID: method, NumAttrs: uint16(len(attrs)),
		DriverID: f.driver, Length: uint16(size)}
	for i, a := range attrs {
		b := f.page[unsafe.Sizeof(*h)+uintptr(i)*unsafe.Sizeof(uapi.IBUverbsAttr{}):]
		binary.NativeEndian.PutUint16(b, a.id)
		binary.NativeEndian.PutUint16(b[2:], a.length)
		binary.NativeEndian.PutUint16(b[4:], uint16(a.flags))
		binary.NativeEndian.PutUint16(b[6:], a.reserved)
		binary.NativeEndian.PutUint64(b[8:], a.data)
	}
	return f.ioctl()
}

func (f *file) ioctl() syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(f.fd), uapi.RDMA_VERBS_IOCTL,
		uintptr(unsafe.Pointer(&f.page[0])))
	return errno
}

// data returns the address of memory for the data of an attribute.
func (f *file) data() uint64 { return uint64(uintptr(unsafe.Pointer(&f.page[dataAt]))) }

// open opens the guest's device, and allocates a protection domain and a completion queue.
func open(t testing.TB) *file {
	t.Helper()
	found, err := filepath.Glob("/sys/class/infiniband_verbs/uverbs*")
	require.NoError(t, err)
	name := ""
	for _, dir := range found {
		device, _ := os.ReadFile(filepath.Join(dir, "ibdev"))
		if strings.TrimSpace(string(device)) == os.Getenv(wire.EnvDevice) {
			name = filepath.Base(dir)
		}
	}
	require.NotEmpty(t, name, "no device file of %s", os.Getenv(wire.EnvDevice))
	_, driver := tested()
	f := &file{driver: uint32(driver), objects: map[uapi.UverbsDefaultObjects]uint64{}}
	f.fd, err = unix.Open("/dev/infiniband/"+name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(f.fd) })
	f.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(f.null) })
	f.page, err = unix.Mmap(-1, 0, 2*1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(f.page) })

	require.Zero(t, f.send(uapi.UVERBS_OBJECT_DEVICE, uint16(uapi.UVERBS_METHOD_GET_CONTEXT),
		attr{id: uapi.UVERBS_ATTR_UHW_OUT, length: 8, data: f.data()}))
	require.Zero(t, f.send(uapi.UVERBS_OBJECT_DEVICE, uint16(uapi.UVERBS_METHOD_INVOKE_WRITE),
		attr{id: uint16(uapi.UVERBS_ATTR_CORE_IN), length: 8},
		attr{id: uint16(uapi.UVERBS_ATTR_CORE_OUT), length: 4, data: f.data()},
		attr{id: uint16(uapi.UVERBS_ATTR_WRITE_CMD), length: 8, data: uint64(uapi.IB_USER_VERBS_CMD_ALLOC_PD)}))
	f.objects[uapi.UVERBS_OBJECT_PD] = uint64(binary.NativeEndian.Uint32(f.page[dataAt:]))
	require.Zero(t, f.send(uapi.UVERBS_OBJECT_CQ, uint16(uapi.UVERBS_METHOD_CQ_CREATE), f.createCQ()...))
	f.objects[uapi.UVERBS_OBJECT_CQ] = f.written(0)
	return f
}

// written returns the data of an attribute after a request.
func (f *file) written(index int) uint64 {
	return binary.NativeEndian.Uint64(f.page[int(unsafe.Sizeof(uapi.IBUverbsIoctlHdr{}))+
		index*int(unsafe.Sizeof(uapi.IBUverbsAttr{}))+8:])
}

// createCQ returns the attributes of a valid CQ_CREATE.
func (f *file) createCQ() []attr {
	return []attr{{id: uint16(uapi.UVERBS_ATTR_CREATE_CQ_HANDLE)},
		{id: uint16(uapi.UVERBS_ATTR_CREATE_CQ_CQE), length: 4, data: 1},
		{id: uint16(uapi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE), length: 8},
		{id: uint16(uapi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR), length: 4},
		{id: uint16(uapi.UVERBS_ATTR_CREATE_CQ_RESP_CQE), length: 4, data: f.data()},
		{id: uapi.UVERBS_ATTR_UHW_OUT, length: 16, data: f.data() + 64}}
}

// encode returns an attribute for the kernel, and reports whether the guest has the object that it names.
func (f *file) encode(a ioctls.Attr, g Given) (attr, bool) {
	out := attr{id: g.ID, length: uint16(g.Length), flags: g.Flags, reserved: g.Reserved}
	switch a.Kind {
	case ioctls.In, ioctls.Out, ioctls.Enum:
		if a.Kind != ioctls.Out && g.Length <= inline {
			return out, true
		}
		clear(f.page[dataAt:][:1<<16])
		if g.tail {
			f.page[dataAt+g.Length-1] = 1
		}
		if out.data = f.data(); g.bad {
			out.data = unbound
		}
		return out, true
	case ioctls.RawFD:
		out.data = uint64(f.null)
		return out, true
	case ioctls.Handle:
		out.data = 0xffff
		if g.object == other {
			out.data = f.objects[uapi.UVERBS_OBJECT_PD]
			if a.Object == uapi.UVERBS_OBJECT_PD {
				out.data = f.objects[uapi.UVERBS_OBJECT_CQ]
			}
			return out, true
		}
	case ioctls.FD:
		if out.data = 0xffff; g.object == other {
			out.data = uint64(f.null)
		}
	}
	if g.object == right && a.Access != ioctls.New {
		handle, ok := f.objects[a.Object]
		out.data = handle
		return out, ok && a.Kind == ioctls.Handle
	}
	return out, true
}

// cases lists an attribute right, and wrong in each way.
func cases(a ioctls.Attr) map[string]Given {
	plain := Given{ID: a.ID, Length: int(a.Min)}
	all := map[string]Given{"right": plain}
	add := func(name string, change func(*Given)) {
		g := plain
		change(&g)
		all[name] = g
	}
	add("unknown flags", func(g *Given) { g.Flags = 1 << 7 })
	add("mandatory", func(g *Given) { g.Flags = uapi.UVERBS_ATTR_F_MANDATORY })
	add("reserved bits", func(g *Given) { g.Reserved = 0x0100 })
	switch a.Kind {
	case ioctls.In, ioctls.Out, ioctls.Enum:
		most := int(a.Max)
		for _, n := range []int{0, int(a.Min) - 1, most, most + 1, most + 64, 16, 17, 4096} {
			if n >= 0 && n < 1<<16 {
				add(fmt.Sprint(n, " bytes"), func(g *Given) { g.Length = n })
				add(fmt.Sprint(n, " bytes, not zero"), func(g *Given) { g.Length, g.tail = n, n > 0 && n > inline })
				add(fmt.Sprint(n, " bytes at a bad address"), func(g *Given) { g.Length, g.bad = n, n > inline })
			}
		}
	case ioctls.Handle, ioctls.FD, ioctls.RawFD:
		add("unknown", func(g *Given) { g.object = unknown })
		add("of another kind", func(g *Given) { g.object = other })
		add("with a length", func(g *Given) { g.Length = 8 })
	}
	if a.Kind == ioctls.Enum {
		for value := range uint16(len(a.Values) + 2) {
			add(fmt.Sprint("value ", value), func(g *Given) { g.Reserved = value })
			add(fmt.Sprint("value ", value, " with data"), func(g *Given) { g.Reserved, g.Length = value, 8 })
		}
	}
	return all
}

// TestAttributes checks that the kernel accepts and rejects every attribute of every method as generated/ioctls
// predicts.
func TestAttributes(t *testing.T) {
	methods := ioctls.Methods(testbed.Kernel(t), uapi.RDMA_DRIVER_UNKNOWN)
	require.NotEmpty(t, methods)
	f := open(t)
	device, _ := tested()
	sent, without := 0, 0
	for _, m := range methods {
		removed := f.send(m.Object, m.ID) == syscall.EPROTONOSUPPORT
		if assert.Equal(t, device.Lacks(m), removed, m.Name); removed {
			continue
		}
		for _, a := range m.Attrs {
			for name, g := range cases(a) {
				encoded, ok := f.encode(a, g)
				if !ok {
					without++
					continue
				}
				want := device.Predict(m, g)
				if want == 0 {
					want = reachedSentinel
				}
				sent++
				assert.Equal(t, want, f.send(m.Object, m.ID, encoded, sentinel), "%s, %s (%v): %s",
					m.Name, a.Name, a.Kind, name)
			}
		}
	}
	t.Logf("%d attributes sent; %d left out, because they name objects of types that the test does not create",
		sent, without)
}

// complete lists methods with complete requests that succeed, so that a request without one attribute shows whether it
// is mandatory.
func complete(f *file) map[string][]attr {
	handle := func(id uint16, o uapi.UverbsDefaultObjects) attr { return attr{id: id, data: f.objects[o]} }
	out := func(id, length uint16) attr { return attr{id: id, length: length, data: f.data() + 64*uint64(id)} }
	in := func(id, length uint16, data uint64) attr { return attr{id: id, length: length, data: data} }
	return map[string][]attr{
		"UVERBS_METHOD_CQ_CREATE": f.createCQ(),
		"UVERBS_METHOD_QUERY_PORT": {in(uint16(uapi.UVERBS_ATTR_QUERY_PORT_PORT_NUM), 8, 1),
			out(uint16(uapi.UVERBS_ATTR_QUERY_PORT_RESP), 48)},
		"UVERBS_METHOD_QUERY_GID_TABLE": {in(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE), 8, 32),
			in(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS), 4, 0),
			{id: uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES), length: 32 * 64, data: f.data() + 4096},
			out(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES), 8)},
		"UVERBS_METHOD_QUERY_GID_ENTRY": {in(uint16(uapi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT), 8, 1),
			in(uint16(uapi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX), 8, 0),
			in(uint16(uapi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS), 4, 0),
			out(uint16(uapi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY), 32)},
		"UVERBS_METHOD_INFO_HANDLES": {in(uint16(uapi.UVERBS_ATTR_INFO_OBJECT_ID), 8, uint64(uapi.UVERBS_OBJECT_PD)),
			out(uint16(uapi.UVERBS_ATTR_INFO_TOTAL_HANDLES), 4),
			{id: uint16(uapi.UVERBS_ATTR_INFO_HANDLES_LIST), length: 64, data: f.data() + 4096}},
		"UVERBS_METHOD_INVOKE_WRITE": {in(uint16(uapi.UVERBS_ATTR_CORE_IN), 8, 0),
			out(uint16(uapi.UVERBS_ATTR_CORE_OUT), 4),
			in(uint16(uapi.UVERBS_ATTR_WRITE_CMD), 8, uint64(uapi.IB_USER_VERBS_CMD_ALLOC_PD))},
		"UVERBS_METHOD_ASYNC_EVENT_ALLOC": {{id: uint16(uapi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)}},
		"UVERBS_METHOD_CQ_DESTROY": {handle(uint16(uapi.UVERBS_ATTR_DESTROY_CQ_HANDLE), uapi.UVERBS_OBJECT_CQ),
			out(uint16(uapi.UVERBS_ATTR_DESTROY_CQ_RESP), 8)},
		"UVERBS_METHOD_PD_DESTROY": {handle(uint16(uapi.UVERBS_ATTR_DESTROY_PD_HANDLE), uapi.UVERBS_OBJECT_PD)},
	}
}

// TestMandatory checks that complete requests succeed, also with an unknown attribute that is not mandatory, and that
// they fail without a mandatory attribute and with one given twice.
func TestMandatory(t *testing.T) {
	kernel := testbed.Kernel(t)
	f := open(t)
	for _, m := range ioctls.Methods(kernel, uapi.RDMA_DRIVER_UNKNOWN) {
		attrs, ok := complete(f)[m.Name]
		if !ok {
			continue
		}
		for _, a := range m.Attrs {
			i := slices.IndexFunc(attrs, func(g attr) bool { return g.id == a.ID })
			if i < 0 {
				assert.False(t, a.Mandatory, "%s succeeds without %s", m.Name, a.Name)
				continue
			}
			if a.Mandatory {
				assert.Equal(t, syscall.EINVAL, f.send(m.Object, m.ID, slices.Delete(slices.Clone(attrs), i, i+1)...),
					"%s without %s", m.Name, a.Name)
			}
			assert.Equal(t, syscall.EINVAL, f.send(m.Object, m.ID, append(slices.Clone(attrs), attrs[i])...),
				"%s with %s twice", m.Name, a.Name)
		}
		ignored := sentinel
		ignored.flags = 0
		assert.Zero(t, f.send(m.Object, m.ID, append(slices.Clone(attrs), ignored)...), m.Name)
	}
}

// TestHeader checks the answers to requests with other headers.
func TestHeader(t *testing.T) {
	testbed.Kernel(t)
	f := open(t)
	query := complete(f)["UVERBS_METHOD_QUERY_PORT"]
	const device, method = uapi.UVERBS_OBJECT_DEVICE, uint16(uapi.UVERBS_METHOD_QUERY_PORT)
	require.Zero(t, f.send(device, method, query...))
	h := (*uapi.IBUverbsIoctlHdr)(unsafe.Pointer(&f.page[0]))
	for name, c := range map[string]struct {
		change func()
		want   syscall.Errno
	}{
		"length":     {func() { h.Length++ }, syscall.EINVAL},
		"attributes": {func() { h.NumAttrs-- }, syscall.EINVAL},
		"reserved1":  {func() { h.Reserved1 = 1 }, syscall.EPROTONOSUPPORT},
		"reserved2":  {func() { h.Reserved2 = 1 }, syscall.EPROTONOSUPPORT},
		"driver":     {func() { h.DriverID = uint32(uapi.RDMA_DRIVER_MLX5) }, syscall.EINVAL},
		"method":     {func() { h.MethodID = 0x0fff }, syscall.EPROTONOSUPPORT},
		"object":     {func() { h.ObjectID = 0x0fff }, syscall.EPROTONOSUPPORT},
	} {
		require.Zero(t, f.send(device, method, query...))
		before := *h
		c.change()
		assert.Equal(t, c.want, f.ioctl(), name)
		*h = before
	}
}
