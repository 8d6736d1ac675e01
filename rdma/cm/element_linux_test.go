// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestALengthThatNoEntryHas: 32 bits would drop what is above them.
func TestALengthThatNoEntryHas(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Log("no slice is as long with 32 bits")
		return
	}
	size := uint64(math.MaxUint32) + 9
	long, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer syscall.Munmap(long)
	_, err = element("rdma_post_send", long, nil)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "4294967304 bytes, and an entry has 4294967295 at most")
}
