// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestInaccessibleMemory: registering memory fails if part of it cannot be accessed.
func TestInaccessibleMemory(t *testing.T) {
	r := newTestbed(t, Options{})
	page := os.Getpagesize()
	for _, prot := range []int{unix.PROT_NONE, unix.PROT_READ} {
		m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		require.NoError(t, unix.Mprotect(m[page:2*page], prot))
		mr, err := verbs.RegMR(r.pd[0], pointerTo(&m[0]), uint64(len(m)), allAccess)
		assert.ErrorIs(t, err, syscall.EFAULT)
		if err == nil {
			verbs.DeregMR(mr)
		}
		unix.Munmap(m)
	}
}
