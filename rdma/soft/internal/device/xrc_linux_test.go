// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// TestXRCDomainsPerDevice checks that a file identifies a separate XRC domain on each device.
func TestXRCDomainsPerDevice(t *testing.T) {
	r := newTestbed(t, Options{})
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer file.Close()
	fd := int32(file.Fd())
	one, err := r.openXRCD(0, fd, impl.OCreate|impl.OExclusive)
	require.NoError(t, err)
	_, err = r.openXRCD(1, fd, 0)
	assert.ErrorIs(t, err, syscall.EAGAIN, "the error of Linux")
	other, err := r.openXRCD(1, fd, impl.OCreate|impl.OExclusive)
	require.NoError(t, err)
	again, err := r.openXRCD(0, fd, 0)
	require.NoError(t, err)
	for _, flags := range []int32{impl.OCreate | impl.OExclusive, impl.OExclusive} {
		_, err = r.openXRCD(0, fd, flags)
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, d := range []*ibv.XRCD{one, other, again} {
		require.NoError(t, verbs.CloseXRCD(d))
	}
	_, err = r.openXRCD(0, fd, 0)
	assert.ErrorIs(t, err, syscall.EAGAIN, "the error of Linux")
}
