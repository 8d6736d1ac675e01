// SPDX-License-Identifier: BSD-2-Clause

// Package chosen knows the device that the environment names, for programs that name none.
package chosen

import (
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/rights"
)

// Variable is the environment variable with the name of the device. Programs with more rights than their user ignore
// it.
const Variable = "GOVERBS_DEVICE"

// Device is the name, or "".
func Device() string { return rights.Getenv(Variable) }

// Backend is the built-in software fabric if the device is one of its, and nil, the native library, otherwise. It makes
// the fabric only if a device is named.
func Backend() (runtime.Backend, error) {
	name := Device()
	if name == "" {
		return nil, nil
	}
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
