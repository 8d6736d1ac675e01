// SPDX-License-Identifier: BSD-2-Clause

package readiness

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNonblock: a descriptor is unchanged before the first wait. It is non-blocking after a wait, with or without
// KeepThread, and after SetNonblock.
func TestNonblock(t *testing.T) {
	stopped := func() bool { return true }
	for name, touch := range map[string]func(r *FD) error{
		"wait": func(r *FD) error {
			_, err := r.Wait(t.Context(), never, stopped)
			return err
		},
		"wait with a thread": func(r *FD) error {
			r.KeepThread(true)
			_, err := r.Wait(t.Context(), never, stopped)
			return err
		},
		"call": (*FD).SetNonblock,
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			require.NoError(t, err)
			t.Cleanup(func() { unix.Close(fd) })
			r, err := New(int32(fd), "test")
			require.NoError(t, err)
			t.Cleanup(r.Close)
			blocks := func() bool {
				flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
				require.NoError(t, err)
				return flags&unix.O_NONBLOCK == 0
			}
			assert.True(t, blocks())
			require.NoError(t, touch(r))
			assert.False(t, blocks())
		})
	}
}
