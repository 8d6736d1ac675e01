// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/runtime"
)

// NativeVariable is an environment variable: 1 selects package native for the kernel's devices. Programs with elevated
// privileges ignore it.
const NativeVariable = "GOVERBS_NATIVE"

// Kernel returns the backend for the kernel's devices: package native if NativeVariable selects it or libibverbs cannot
// be opened, and otherwise runtime.Native, which is rdma-core.
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
	return runtime.Native, nil // its errors explain why libibverbs cannot be opened
}

// IsNative reports whether a backend is package native's.
func IsNative(b runtime.Backend) bool {
	_, ok := b.(*native.Backend)
	return ok
}

// IsSoftware reports whether a backend's devices are software in this process, which have no limits of drivers or of
// pinned memory. Package native has the kernel's devices.
func IsSoftware(b runtime.Backend) bool { return b != runtime.Native && !IsNative(b) }

// Name returns a backend's name for messages: "rdma-core 44.0", "native" or "software".
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

// WithoutLibrary returns the reason if this process cannot use rdma-core, and "" if it can.
func WithoutLibrary() string {
	if !runtime.OpensLibraries {
		return "this build cannot use C libraries"
	}
	if err := libibverbs.Library.Open(); err != nil {
		return err.Error()
	}
	return ""
}
