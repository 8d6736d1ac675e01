// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package device

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNudgeAgain: a wait that is edge-triggered, like that of Go's poller, notices each nudge, even if the file was not
// read since the last one; and there is one item to read.
func TestNudgeAgain(t *testing.T) {
	var e Events[int]
	require.Zero(t, e.Open())
	defer e.Close()
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(poll)
	fd := int(e.Descriptor())
	require.NoError(t, unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}))
	woken := func() int {
		n, err := unix.EpollWait(poll, make([]unix.EpollEvent, 1), 0)
		require.NoError(t, err)
		return n
	}
	for range 3 {
		e.Nudge()
		require.Equal(t, 1, woken())
		require.Zero(t, woken())
	}
	e.Lower()
	require.NoError(t, unix.SetNonblock(fd, true))
	_, err = unix.Read(fd, make([]byte, 8))
	require.ErrorIs(t, err, unix.EAGAIN)
}
