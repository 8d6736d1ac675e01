// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// resident returns the resident memory of the process in bytes, and its number of descriptors.
func resident(t *testing.T) (memory, files int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var size, pages int
	_, err = fmt.Sscan(string(text), &size, &pages)
	require.NoError(t, err)
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return pages * os.Getpagesize(), len(all)
}
