// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// libraryWithSoft0 is a libibverbs with one device that cannot be opened and is named like a software device.
const libraryWithSoft0 = `
#include <errno.h>
#include <stddef.h>
static long device[512];
static void *list[] = {device, NULL};
void **ibv_get_device_list(int *n) { *n = 1; return list; }
void ibv_free_device_list(void **l) { (void)l; }
const char *ibv_get_device_name(void *d) { (void)d; return "soft0"; }
unsigned long long ibv_get_device_guid(void *d) { (void)d; return 0; }
int ibv_get_device_index(void *d) { (void)d; return 1; }
void *ibv_open_device(void *d) { (void)d; errno = EACCES; return NULL; }
`

// TestSoftDeviceFromEnvironment: if a kernel device and a software device have the same name, GOVERBS_DEVICE selects
// the software device, as in rdma/cm, and a name passed to Open selects the kernel device.
func TestSoftDeviceFromEnvironment(t *testing.T) {
	if !runtime.OpensLibraries {
		t.Skip("this build cannot call C (goverbs_static)")
	}
	const inside = "GOVERBS_TEST_SOFT0"
	if os.Getenv(inside) != "" {
		native, err := rdma.DevicesOf(runtime.Native)
		require.NoError(t, err)
		require.Len(t, native, 1)
		require.Equal(t, "soft0", native[0].Name)
		d, err := rdma.Open("")
		require.NoError(t, err)
		assert.NotEqual(t, runtime.Native, d.Info().Backend)
		assert.Equal(t, runtime.Native, native[0].Backend)
		assert.NoError(t, d.Close())
		_, err = rdma.Open("soft0")
		assert.ErrorIs(t, err, syscall.EACCES)
		assert.ErrorContains(t, err, "ibv_open_device: soft0 (rdma-core): ")
		return
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	library := filepath.Join(t.TempDir(), "libibverbs.so.1")
	compile := exec.Command(cc, "-shared", "-fPIC", "-o", library, "-x", "c", "-")
	compile.Stdin = strings.NewReader(libraryWithSoft0)
	out, err := compile.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no C compiler")
	}
	require.NoError(t, err, "%s", out)
	test := exec.Command(os.Args[0], "-test.run=^TestSoftDeviceFromEnvironment$", "-test.v")
	test.Env = append(os.Environ(), inside+"=1", "GOVERBS_DEVICE=soft0", "GOVERBS_LIBIBVERBS="+library)
	out, err = test.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestSoftDeviceFromEnvironment")
}
