// SPDX-License-Identifier: BSD-2-Clause

// Package chosen selects the backend for programs that name none: by the environment, or rdma-core or package native
// for the kernel's devices.
package chosen

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// Variable is the environment variable with the name of the device. Programs with elevated privileges ignore it.
const Variable = "GOVERBS_DEVICE"

// Device returns the value of Variable, or "".
func Device() string { return rights.Getenv(Variable) }

// Hint returns an instruction for using a software device, for errors about missing RDMA devices.
func Hint() string {
	const hint = "set " + Variable + "=soft0 in the environment to use the software devices"
	name := Device()
	switch of, err := shared(name); {
	case IsWired(name), err == nil && of != nil:
		return fmt.Sprintf("%s=%q applies only to calls without a backend, and runtime.Native is rdma-core",
			Variable, name)
	case strings.HasPrefix(name, "soft"):
		return fmt.Sprintf("%s; its value %q is not a software device: for one with an address of this machine, use "+
			"%sADDRESS", hint, name, soft.Prefix)
	case name != "":
		return fmt.Sprintf("%s; its value %q is not a software device", hint, name)
	}
	return hint
}

// IsWired reports whether other processes can reach a device, that is, whether its name contains an address.
func IsWired(device string) bool { return strings.HasPrefix(device, soft.Prefix) }

// Of returns b, or the backend that the environment selects if b is nil. It is never nil.
func Of(backend runtime.Backend) (runtime.Backend, error) {
	if backend != nil {
		return backend, nil
	}
	return Backend()
}

// Backend returns the backend that the environment selects: the software fabric of a named device, package native for a
// name like "native:rxe0", or otherwise that of Kernel. It creates a fabric, or opens a device with an address, only if
// that device is named.
func Backend() (runtime.Backend, error) {
	name := Device()
	switch {
	case name == "":
		return Kernel()
	case IsWired(name):
		fabric, _, err := soft.Named(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Variable, err)
		}
		return fabric, nil
	case strings.HasPrefix(name, native.Prefix):
		backend, err := native.Open()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Variable, err)
		}
		return backend, nil
	}
	fabric, err := shared(name)
	switch {
	case err != nil:
		return nil, err
	case fabric == nil:
		return Kernel()
	}
	return fabric, nil
}

// shared returns the fabric of soft.Default if it has a device with the name, or nil.
func shared(name string) (*soft.Fabric, error) {
	fabric, err := soft.Default()
	if err != nil {
		return nil, err
	}
	for _, device := range fabric.Addresses() {
		if device == name {
			return fabric, nil
		}
	}
	return nil, nil
}
