// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	kernel "github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// DeviceInfo describes a device. Listing it does not open the device.
//
// C: ibv_get_device_list, ibv_free_device_list, ibv_get_device_name, ibv_get_device_guid, ibv_get_device_index
//
// Man: ibv_get_device_list(3)
type DeviceInfo struct {
	Name      string   // "mlx5_0"
	GUID      ibv.GUID // of the node
	Index     int      // the kernel's number of the device, or -1 if unknown
	NodeType  ibv.NodeType
	Transport ibv.TransportType
	Backend   runtime.Backend // a software fabric, package native's backend, or runtime.Native: rdma-core
}

// IsSoftware reports whether the device is implemented in software by this process.
func (i DeviceInfo) IsSoftware() bool { return chosen.IsSoftware(i.Backend) }

// KernelBackend returns the backend that Open uses for devices of the kernel: runtime.Native, which is rdma-core, if
// libibverbs can be opened, and otherwise package native's. GOVERBS_NATIVE=1 in the environment selects package native;
// programs with more privileges than their user ignore it. To select a backend in the program, pass runtime.Native or
// the result of native.Open to functions with a backend parameter, such as OpenOn.
func KernelBackend() (runtime.Backend, error) { return chosen.Kernel() }

// BackendName returns the name of a backend for reports: "rdma-core 44.0" (or "rdma-core" if its release is unknown),
// "native" or "software".
func BackendName(backend runtime.Backend) string { return chosen.Name(backend) }

// Devices lists the kernel's devices (see [KernelBackend]), those of the built-in software fabric, and the software
// devices with an address in their names ("soft@192.0.2.1") that this process has opened. If the kernel has no RDMA
// support, Devices lists only software devices and returns no error; DevicesOf(KernelBackend()) returns the cause.
func Devices() ([]DeviceInfo, error) {
	all, err := kernelDevices()
	if noRDMA(err) {
		err = nil
	}
	fabric, err2 := embedded()
	err = errors.Join(err, err2)
	if fabric != nil {
		own, err2 := DevicesOf(fabric)
		all, err = append(all, own...), errors.Join(err, err2)
	}
	if fabric := soft.Wired(); fabric != nil {
		own, err2 := DevicesOf(fabric)
		all, err = append(all, own...), errors.Join(err, err2)
	}
	return all, err
}

// kernelDevices lists the devices of the kernel.
func kernelDevices() ([]DeviceInfo, error) {
	backend, err := chosen.Kernel()
	if err != nil {
		return nil, err
	}
	return DevicesOf(backend)
}

// noRDMA reports whether an error of listing devices means that the system has no RDMA support.
func noRDMA(err error) bool {
	return errors.Is(err, ErrNotSupported) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOENT)
}

// DevicesOf lists the devices of a backend: a software fabric, package native's backend, or runtime.Native, which is
// rdma-core. With nil, it is [Devices].
func DevicesOf(backend runtime.Backend) ([]DeviceInfo, error) {
	if backend == nil {
		return Devices()
	}
	var all []DeviceInfo
	err := eachDevice(backend, func(_ *ibv.Device, info DeviceInfo) bool {
		all = append(all, info)
		return true
	})
	return all, err
}

// eachDevice calls f for each device of a backend until f returns false. d is valid only during the call.
func eachDevice(backend runtime.Backend, f func(d *ibv.Device, info DeviceInfo) bool) error {
	var n int32
	list, err := libibverbs.From{Backend: backend}.GetDeviceList(&n)
	if err != nil {
		return explain("ibv_get_device_list", listedBy(backend, err), listReason(backend, err), err)
	}
	defer libibverbs.FreeDeviceList(list)
	for _, p := range unsafe.Slice(list, n) {
		d := p.Deref()
		info := DeviceInfo{Index: -1, NodeType: d.NodeType, Transport: d.TransportType, Backend: backend}
		if info.Name, err = libibverbs.GetDeviceName(d); err != nil {
			return err
		}
		if info.GUID, err = libibverbs.GetDeviceGUID(d); err != nil {
			return err
		}
		if index, err := libibverbs.GetDeviceIndex(d); err == nil { // old releases of rdma-core lack the function
			info.Index = index
		}
		if !f(d, info) {
			break
		}
	}
	return nil
}

// listedBy names the backend whose device list failed. The error of a missing library already names the library.
func listedBy(backend runtime.Backend, err error) string {
	if chosen.IsSoftware(backend) || errors.As(err, new(*runtime.NotSupportedError)) {
		return ""
	}
	return chosen.Name(backend)
}

// listReason explains an errno of ibv_get_device_list and, if package native is in use because libibverbs is missing,
// that.
func listReason(backend runtime.Backend, err error) string {
	var call *runtime.CallError
	if !errors.As(err, &call) || call.Errno != syscall.ENOSYS && call.Errno != syscall.ENOENT {
		return ""
	}
	if !chosen.IsNative(backend) {
		return "the kernel has no RDMA support: load the module ib_uverbs and check /sys/class/infiniband_verbs"
	}
	reason := "the kernel has no RDMA support: load the modules ib_core and ib_uverbs"
	if missing := chosen.WithoutLibrary(); missing != "" {
		reason += " (not rdma-core: " + missing + ")"
	}
	return reason
}

// Open opens a device by name: a device of the kernel, or of the built-in software fabric, like "soft0". If both have
// the name, Open opens the kernel's device, with rdma-core if libibverbs can be opened, and otherwise with package
// native: see [KernelBackend].
//
// A name with an address of this machine, like "soft@192.0.2.1", "soft@2001:db8::1" or "soft@fe80::1%eth0", opens a
// software device that speaks RoCE v2 over UDP port 4791 to devices at other addresses: software devices of other
// processes and hosts, Soft-RoCE, and adapters. See soft.Named. Such a device is reachable from the network:
// docs/wire.md describes the consequences.
//
// A name like "native:rxe0" opens the kernel's device with package native, without rdma-core.
//
// Without a name, Open uses the environment variable GOVERBS_DEVICE. If that is not set, it opens the kernel's first
// device. Programs with more privileges than their user (set-uid, set-gid, file capabilities) ignore the
// variable.
//
// C: ibv_open_device
//
// Man: ibv_open_device(3)
func Open(name string) (*Device, error) {
	named := name != ""
	if !named {
		if name = chosen.Device(); name == "" {
			return openFirst()
		}
	}
	if strings.HasPrefix(name, soft.Prefix) {
		fabric, device, err := soft.Named(name)
		if err != nil {
			return nil, err
		}
		return OpenOn(fabric, device)
	}
	if kernelName, ok := strings.CutPrefix(name, kernel.Prefix); ok {
		backend, err := kernel.Open()
		if err != nil {
			return nil, err
		}
		return OpenOn(backend, kernelName)
	}
	if !named { // rdma/cm searches in the same order
		if fabric, err := chosen.Backend(); err == nil && chosen.IsSoftware(fabric) {
			return OpenOn(fabric, name)
		}
	}
	backend, err := chosen.Kernel()
	if err != nil {
		return nil, err
	}
	d, native := OpenOn(backend, name)
	if native == nil {
		return d, nil
	}
	var unknown *UnknownDeviceError
	if !errors.As(native, &unknown) && !noRDMA(native) {
		return nil, native
	}
	fabric, err := embedded()
	if err != nil || fabric == nil {
		return nil, errors.Join(native, err)
	}
	d, err = OpenOn(fabric, name)
	if unknown != nil && errors.As(err, &unknown) {
		all, _ := Devices()
		return nil, &UnknownDeviceError{Name: name, Known: names(all), Library: chosen.Name(backend)}
	}
	if errors.As(err, &unknown) { // the kernel's devices could not be listed
		return nil, fmt.Errorf("%w; the kernel's devices could not be listed: %w", err, native)
	}
	return d, err
}

// Reasons for errors of package native.
const (
	needsDriver = "its driver needs rdma-core; for mlx5 and EFA on recent kernels, import rdma/native/mlx5 or " +
		"rdma/native/efa"
	needsVerb = "the kernel or package native does not support it; rdma-core may"
)

// needsLibrary returns reason and a hint to use rdma-core, if err means that package native lacks a feature; otherwise
// "".
func needsLibrary(backend runtime.Backend, reason string, err error) string {
	if !chosen.IsNative(backend) || !errors.Is(err, syscall.EOPNOTSUPP) {
		return ""
	}
	if missing := chosen.WithoutLibrary(); missing != "" {
		return reason + ": " + missing
	}
	return reason + ": open it without " + kernel.Prefix + " and " + chosen.NativeVariable
}

// openFirst opens the kernel's first device.
func openFirst() (*Device, error) {
	all, err := kernelDevices()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; for a software device, set %s=soft0", err, chosen.Variable)
	case len(all) == 0:
		return nil, fmt.Errorf("%w; for a software device, set %s=soft0", &UnknownDeviceError{},
			chosen.Variable)
	}
	return all[0].Open()
}

// OpenOn opens a device of a backend: a software fabric, package native's backend, or runtime.Native, which is
// rdma-core. With nil, it is [Open].
func OpenOn(backend runtime.Backend, name string) (*Device, error) {
	if backend == nil {
		return Open(name)
	}
	var (
		device *Device
		failed error
		known  []DeviceInfo
	)
	err := eachDevice(backend, func(d *ibv.Device, info DeviceInfo) bool {
		known = append(known, info)
		if info.Name != name {
			return true
		}
		device, failed = open(d, info)
		return false
	})
	switch {
	case err != nil || failed != nil:
		return nil, errors.Join(err, failed)
	case device == nil:
		unknown := &UnknownDeviceError{Name: name, Known: names(known)}
		if !chosen.IsSoftware(backend) {
			unknown.Library = chosen.Name(backend)
		}
		return nil, unknown
	}
	return device, nil
}

// Open opens the device.
func (i DeviceInfo) Open() (*Device, error) { return OpenOn(i.Backend, i.Name) }

func names(all []DeviceInfo) (names []string) {
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// UnknownDeviceError reports that no device has the name, and lists the known devices. errors.Is matches ENOENT.
type UnknownDeviceError struct {
	Name    string
	Known   []string
	Library string // BackendName of the kernel's devices, or "" if the error concerns only software devices
}

// Error returns the unknown name, the known names, and the backend that listed the kernel's devices.
func (e *UnknownDeviceError) Error() string {
	form := ""
	if strings.HasPrefix(e.Name, "soft") {
		form = "; for an address of this machine use " + soft.Prefix + "ADDRESS"
	}
	if e.Library != "" {
		form = " (kernel devices: " + e.Library + ")" + form
	}
	switch {
	case len(e.Known) == 0 && e.Name == "":
		return "rdma: no devices" + form
	case len(e.Known) == 0:
		return fmt.Sprintf("rdma: no device %q: no devices found%s", e.Name, form)
	}
	return fmt.Sprintf("rdma: no device %q; known devices: %s%s", e.Name, strings.Join(e.Known, ", "), form)
}

// Unwrap returns ENOENT.
func (e *UnknownDeviceError) Unwrap() error { return syscall.ENOENT }

// embedded returns the built-in software fabric, or nil.
var embedded = func() (runtime.Backend, error) {
	f, err := soft.Default()
	if err != nil {
		return nil, err
	}
	return f, nil
}
