// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/windows"
)

const identification = Unknown

// Winsock options missing from x/sys.
const (
	ipDontFragment   = 14
	ipv6DontFragment = 14
)

func doNotFragment(fd uintptr, ipv4 bool) {
	if ipv4 {
		_ = windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IP, ipDontFragment, 1)
		return
	}
	_ = windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IPV6, ipv6DontFragment, 1)
}

func full(err error) bool {
	return errors.Is(err, windows.WSAENOBUFS) || errors.Is(err, windows.WSAEWOULDBLOCK)
}
func tooLong(err error) bool { return errors.Is(err, windows.WSAEMSGSIZE) }

// named adds the portable error of package syscall, for errors.Is.
func named(err error) error {
	for number, name := range map[error]error{
		windows.WSAEADDRINUSE:    syscall.EADDRINUSE,
		windows.WSAEADDRNOTAVAIL: syscall.EADDRNOTAVAIL,
		windows.WSAEACCES:        syscall.EACCES,
		windows.WSAEAFNOSUPPORT:  syscall.EAFNOSUPPORT,
	} {
		if errors.Is(err, number) {
			return fmt.Errorf("%w (%w)", err, name)
		}
	}
	return err
}
