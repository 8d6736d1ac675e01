// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEntryLengthOverflow: lengths above 32 bits are rejected, not truncated.
func TestEntryLengthOverflow(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Log("slices cannot be that long on 32-bit machines")
		return
	}
	size := uint64(math.MaxUint32) + 9
	long, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer syscall.Munmap(long)
	_, err = element("rdma_post_send", long, nil)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "4294967304 bytes exceed the maximum of an entry, 4294967295")
}
