// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma_test

import (
	"errors"
	"os"
	"os/exec"
	goruntime "runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/runtime"
)

// TestKernelBackend: Open uses rdma-core for the kernel's devices if its library can be opened. GOVERBS_NATIVE=1
// selects package native, except in a program with more privileges than its user.
func TestKernelBackend(t *testing.T) {
	t.Setenv("GOVERBS_NATIVE", "")
	usual, err := rdma.KernelBackend()
	require.NoError(t, err)
	if libibverbs.Library.Open() == nil {
		assert.Equal(t, runtime.Native, usual)
		assert.Regexp(t, `^rdma-core( \d+\.\d+)?$`, rdma.BackendName(usual))
	} else {
		assert.IsType(t, (*native.Backend)(nil), usual)
	}

	t.Setenv("GOVERBS_NATIVE", "1")
	without, err := native.Open()
	require.NoError(t, err)
	forced, err := rdma.KernelBackend()
	require.NoError(t, err)
	assert.Same(t, without, forced)
	assert.Equal(t, "native", rdma.BackendName(forced))
	all, err := rdma.Devices()
	require.NoError(t, err)
	for _, d := range all {
		assert.NotEqual(t, runtime.Native, d.Backend, d.Name)
	}
	_, err = rdma.Open("nothing0")
	assert.ErrorContains(t, err, `no device "nothing0"; known devices: `)
	if _, failed := rdma.DevicesOf(forced); failed != nil {
		assert.ErrorContains(t, err, "ibv_get_device_list: native: ")
	} else {
		assert.ErrorContains(t, err, "(kernel devices: native)")
	}

	before := rights.More
	defer func() { rights.More = before }()
	rights.More = func() bool { return true }
	secure, err := rdma.KernelBackend()
	require.NoError(t, err)
	assert.Equal(t, usual, secure)
}

// TestMissingLibibverbs: without libibverbs, Open, Devices and the connection manager use package native.
func TestMissingLibibverbs(t *testing.T) {
	const inside = "GOVERBS_TEST_MISSING"
	if os.Getenv(inside) == "" {
		test := exec.Command(os.Args[0], "-test.run=^TestMissingLibibverbs$", "-test.v")
		test.Env = append(os.Environ(), inside+"=1", "GOVERBS_LIBIBVERBS=/nonexistent/libibverbs.so.1",
			"GOVERBS_NATIVE=", "GOVERBS_DEVICE=")
		out, err := test.CombinedOutput()
		if errors.Is(err, syscall.ENOEXEC) {
			t.Skip("this kernel does not execute programs for " + goruntime.GOARCH)
		}
		assert.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: TestMissingLibibverbs")
		return
	}
	backend, err := rdma.KernelBackend()
	require.NoError(t, err)
	assert.IsType(t, (*native.Backend)(nil), backend)
	if _, err := rdma.DevicesOf(backend); err != nil {
		assert.ErrorContains(t, err, "ibv_get_device_list: native: ")
		if runtime.OpensLibraries {
			assert.ErrorContains(t, err, "(not rdma-core: /nonexistent/libibverbs.so.1 cannot be opened")
		}
	}
	_, err = rdma.DevicesOf(runtime.Native)
	assert.ErrorIs(t, err, rdma.ErrNotSupported, "runtime.Native is never replaced by package native")
	if _, err := cm.CreateID(rdmacm.PS_TCP); err != nil {
		assert.NotContains(t, err.Error(), "librdmacm.so.1", "rdma-core's connection manager is not used either")
	}
}

// listing is a kernel that lists devices but cannot open them.
type listing struct {
	native.System
	devices []native.DeviceInfo
}

func (l listing) Devices() ([]native.DeviceInfo, error) { return l.devices, nil }

// TestErrorsNameTheLibrary: errors of package native's devices name the package and explain how to use rdma-core.
func TestErrorsNameTheLibrary(t *testing.T) {
	backend, err := native.New(listing{devices: []native.DeviceInfo{{Name: "hns_0", Path: "/dev/infiniband/uverbs99",
		Driver: uint32(uapi.RDMA_DRIVER_HNS)}, {Name: "rxe0", Path: "/dev/infiniband/uverbs98",
		Driver: uint32(uapi.RDMA_DRIVER_RXE)}}})
	require.NoError(t, err)
	_, err = rdma.OpenOn(backend, "hns_0")
	assert.ErrorIs(t, err, rdma.ErrNotSupported)
	assert.ErrorContains(t, err, "ibv_open_device: hns_0 (native): its driver needs rdma-core")
	_, err = rdma.OpenOn(backend, "rxe0")
	assert.ErrorIs(t, err, syscall.ENOENT)
	assert.ErrorContains(t, err, "ibv_open_device: rxe0 (native): the device's file in /dev/infiniband is missing")
	_, err = rdma.OpenOn(backend, "mlx5_0")
	assert.EqualError(t, err, `rdma: no device "mlx5_0"; known devices: hns_0, rxe0 (kernel devices: native)`)
}
