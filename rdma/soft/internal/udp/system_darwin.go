// SPDX-License-Identifier: BSD-2-Clause

package udp

import "golang.org/x/sys/unix"

// identification is the value that XNU writes with IP_DONTFRAG.
const identification = Zero

func doNotFragment(fd uintptr, ipv4 bool) {
	if ipv4 {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_DONTFRAG, 1)
		return
	}
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
}
