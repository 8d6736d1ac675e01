// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/ioctls"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/runtime"
)

// Kernel is the emulated kernel. It uses the real system calls otherwise: the device file is a file in memory, and
// events arrive on sockets.
type Kernel struct {
	native.System
	device                    native.DeviceInfo
	open, ioctl, write, close *runtime.Function
	methods                   []ioctls.Method // of the newest recorded kernel
}

// nodeGUID is the node GUID of the emulated device.
const nodeGUID = 0x02676f7665726273

var _ native.Kernel = &Kernel{}

// drivers lists the adapters for which package native has a driver.
var drivers = map[string]uapi.RDMADriverID{"mlx5": uapi.RDMA_DRIVER_MLX5, "efa": uapi.RDMA_DRIVER_EFA}

// Open returns the kernel of a process that runs with the preloaded library.
func Open() (*Kernel, error) {
	adapter := os.Getenv("GOVERBS_EMULATED")
	driver, ok := drivers[adapter]
	if !ok {
		return nil, fmt.Errorf("emulated kernel: no driver for adapter %q", adapter)
	}
	path, err := library()
	if err != nil {
		return nil, err
	}
	l := &runtime.Library{Name: "emulatedkernel", SOName: path}
	function := func(name string) *runtime.Function { return &runtime.Function{Library: l, Name: name} }
	kind := ibv.NODE_CA
	if driver == uapi.RDMA_DRIVER_EFA {
		kind = ibv.NODE_UNSPECIFIED
	}
	return &Kernel{open: function("open"), ioctl: function("ioctl"), write: function("write"), close: function("close"),
		methods: ioctls.Methods(ioctls.Kernels()[len(ioctls.Kernels())-1], driver),
		device: native.DeviceInfo{Name: adapter + "_0", Path: "/dev/infiniband/uverbs0", Driver: uint32(driver),
			NodeType: uint8(kind), NodeGUID: nodeGUID}}, nil
}

// library returns the file of the preloaded library.
func library() (string, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(maps)) {
		if line = strings.TrimSpace(line); strings.HasSuffix(line, "/emulated.so") {
			return line[strings.IndexByte(line, '/'):], nil
		}
	}
	return "", errors.New("emulated kernel: its library is not preloaded")
}

// Devices implements native.Kernel.
func (k *Kernel) Devices() ([]native.DeviceInfo, error) { return []native.DeviceInfo{k.device}, nil }

// errno returns the error number of a C function.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var number syscall.Errno
	if !errors.As(err, &number) {
		panic(err.Error())
	}
	return number
}

// Open implements native.Kernel.
func (k *Kernel) Open(path string) (int32, syscall.Errno) {
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return -1, syscall.EINVAL
	}
	fd, err := k.open.Exported().MinusOne(uintptr(unsafe.Pointer(name)), syscall.O_RDWR|syscall.O_CLOEXEC)
	return int32(fd), errno(err)
}

// Ioctl implements native.Kernel. It panics for a request that a real kernel would reject before the method runs.
func (k *Kernel) Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno {
	if request == uapi.RDMA_VERBS_IOCTL {
		h := (*uapi.IBUverbsIoctlHdr)(command)
		unrecorded := k.device.Driver == uint32(uapi.RDMA_DRIVER_EFA) && h.MethodID >= uapi.UVERBS_ID_DRIVER_NS
		if err := ioctls.Check(k.methods, h, h.Attrs(int(h.NumAttrs))); err != nil && !unrecorded {
			panic("emulated kernel: " + err.Error())
		}
	}
	_, err := k.ioctl.Exported().MinusOne(uintptr(fd), request, uintptr(command))
	return errno(err)
}

// Write implements native.Kernel.
func (k *Kernel) Write(fd int32, b []byte) (int, syscall.Errno) {
	n, err := k.write.Exported().MinusOne(uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	goruntime.KeepAlive(b)
	return max(int(n), 0), errno(err)
}

// Close implements native.Kernel.
func (k *Kernel) Close(fd int32) syscall.Errno {
	_, err := k.close.Exported().MinusOne(uintptr(fd))
	return errno(err)
}
