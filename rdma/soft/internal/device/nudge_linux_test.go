// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package device

import (
	"testing"

	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNudgeEdgeTriggered: an edge-triggered wait, like Go's netpoller, notices each Nudge, even if the descriptor was
// not read since the last one, and Lower clears all of them.
func TestNudgeEdgeTriggered(t *testing.T) {
	var e resource.Events[int]
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
