// SPDX-License-Identifier: BSD-2-Clause

//go:build goverbs_static

package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

// TestStatic checks that the error without C names the build tag and the alternative.
func TestStatic(t *testing.T) {
	assert.False(t, runtime.Fast)
	l := &runtime.Library{Name: "libibverbs", SOName: "libibverbs.so.1", Project: "rdma-core"}
	err := (&runtime.Function{Library: l, Name: "ibv_open_device"}).Exported().Errno()
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	assert.EqualError(t, err, "ibv_open_device: libibverbs.so.1 cannot be opened: this program was built with the tag "+
		"goverbs_static and cannot use C libraries; for devices of the kernel, use package rdma/native (native:NAME)")
}
