// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/runtime"
)

// NativeVariable is the environment variable that selects package native for devices of the kernel if it is 1. Programs
// with more rights than their user ignore it.
const NativeVariable = "GOVERBS_NATIVE"

// Kernel returns the backend for devices of the kernel: runtime.Native, which is rdma-core, or package native's if
// NativeVariable selects it or libibverbs cannot be opened.
func Kernel() (runtime.Backend, error) {
	forced := rights.Getenv(NativeVariable) == "1"
	if !forced && libibverbs.Library.Open() == nil {
		return runtime.Native, nil
	}
	b, err := native.Open()
	switch {
	case err == nil:
		return b, nil
	case forced:
		return nil, fmt.Errorf("%s=1: %w", NativeVariable, err)
	}
	return runtime.Native, nil // its error explains why libibverbs cannot be opened
}

// IsNative reports whether a backend is package native's.
func IsNative(b runtime.Backend) bool {
	_, ok := b.(*native.Backend)
	return ok
}

// IsSoftware reports whether the devices of a backend are software of this process, not the kernel's.
func IsSoftware(b runtime.Backend) bool { return b != runtime.Native && !IsNative(b) }

// Name names a backend in messages: "rdma-core 44.0", "native" or "software".
func Name(b runtime.Backend) string {
	switch {
	case IsNative(b):
		return "native"
	case b != runtime.Native:
		return "software"
	}
	if release := release(); release != "" {
		return "rdma-core " + release
	}
	return "rdma-core"
}

// WithoutLibrary returns why this process cannot use rdma-core, or "" if it can.
func WithoutLibrary() string {
	if !runtime.OpensLibraries {
		return "this build cannot use C libraries"
	}
	if err := libibverbs.Library.Open(); err != nil {
		return err.Error()
	}
	return ""
}
