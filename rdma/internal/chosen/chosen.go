// SPDX-License-Identifier: BSD-2-Clause

// Package chosen returns the device that the environment selects for programs that name none, and selects rdma-core or
// package native for devices of the kernel.
package chosen

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// Variable is the environment variable with the name of the device. Programs with more rights than their user ignore
// it.
const Variable = "GOVERBS_DEVICE"

// Device returns the name, or "".
func Device() string { return rights.Getenv(Variable) }

// Hint returns how to get a software device if the native library has no device.
func Hint() string {
	const hint = Variable + "=soft0 in the environment takes the software devices"
	name := Device()
	switch of, err := shared(name); {
	case IsWired(name), err == nil && of != nil:
		return fmt.Sprintf("%s=%q is for calls that name no backend, and runtime.Native is rdma-core",
			Variable, name)
	case strings.HasPrefix(name, "soft"):
		return fmt.Sprintf("%s; it is %q, which none of them is called: one with an address of this machine is "+
			"%sADDRESS", hint, name, soft.Prefix)
	case name != "":
		return fmt.Sprintf("%s; it is %q, which none of them is called", hint, name)
	}
	return hint
}

// IsWired reports whether a device's name has an address, at which other processes reach it.
func IsWired(device string) bool { return strings.HasPrefix(device, soft.Prefix) }

// Of returns b, or the backend that the environment selects if b is nil. It is never nil.
func Of(backend runtime.Backend) (runtime.Backend, error) {
	if backend != nil {
		return backend, nil
	}
	return Backend()
}

// Backend returns the software fabric of the named device, package native for a name like "native:rxe0", or the backend
// for devices of the kernel otherwise. It creates a fabric, and opens a device with an address, only if that device is
// named.
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

// shared returns the fabric of soft.Default if it has a device of the name, or nil.
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
