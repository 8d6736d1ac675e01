// SPDX-License-Identifier: BSD-2-Clause

package udp

import "golang.org/x/sys/unix"

// identification is what XNU writes where IP_DONTFRAG is set.
const identification = Zero

func doNotFragment(fd uintptr, ipv4 bool) {
	if ipv4 {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_DONTFRAG, 1)
		return
	}
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
}
