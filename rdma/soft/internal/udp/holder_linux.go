// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"
	"unsafe"
)

// holder describes the process that uses a port of an address, with a hint.
func holder(at netip.AddrPort) string { return holderIn(os.DirFS("/"), at) }

func holderIn(root fs.FS, at netip.AddrPort) string {
	const elsewhere = "choose another address of this machine (127.0.0.2 …), or another network namespace"
	inodes := inodesOf(root, at)
	if pid, name, ok := processWith(root, inodes); ok {
		return fmt.Sprintf("process %s (%q) uses the port: end it, or %s", pid, name, elsewhere)
	}
	if softRoCE(root) {
		return "the kernel's Soft-RoCE uses the port in this network namespace: " +
			"unload rdma_rxe (rmmod rdma_rxe), or use another network namespace"
	}
	if len(inodes) > 0 {
		return "the kernel or a process of another user uses the port (run ss -ulnp as root to find it): " +
			elsewhere
	}
	return "an unknown user of the port: " + elsewhere
}

// softRoCE reports whether the kernel's Soft-RoCE is loaded.
func softRoCE(root fs.FS) bool {
	if _, err := fs.Stat(root, "sys/module/rdma_rxe"); err == nil {
		return true
	}
	devices, _ := fs.Glob(root, "sys/class/infiniband/rxe*")
	return len(devices) > 0
}

// inodesOf returns the sockets that prevent a bind to an address and port: those of that address and of the wildcard
// address.
func inodesOf(root fs.FS, at netip.AddrPort) []string {
	var inodes []string
	for _, table := range []string{"udp", "udp6"} {
		text, err := fs.ReadFile(root, "proc/thread-self/net/"+table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			cells := strings.Fields(line)
			if len(cells) < 10 {
				continue
			}
			bound, ok := tableAddress(cells[1])
			if ok && bound.Port() == at.Port() &&
				(bound.Addr() == at.Addr().WithZone("") || bound.Addr().IsUnspecified()) {
				inodes = append(inodes, cells[9])
			}
		}
	}
	return inodes
}

// tableAddress parses an address in the kernel's tables: 32-bit words in the machine's byte order, in hexadecimal, a
// colon and the port.
func tableAddress(cell string) (netip.AddrPort, bool) {
	words, port, _ := strings.Cut(cell, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil || len(words) != 8 && len(words) != 32 {
		return netip.AddrPort{}, false
	}
	var bytes []byte
	for ; words != ""; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		native := uint32(word)
		bytes = append(bytes, (*[4]byte)(unsafe.Pointer(&native))[:]...)
	}
	addr, ok := netip.AddrFromSlice(bytes)
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), ok
}

// processWith finds a process with one of these sockets open.
func processWith(root fs.FS, inodes []string) (pid, name string, ok bool) {
	if len(inodes) == 0 {
		return "", "", false
	}
	processes, _ := fs.ReadDir(root, "proc")
	for _, process := range processes {
		pid := process.Name()
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		files, err := fs.ReadDir(root, path.Join("proc", pid, "fd"))
		if err != nil {
			continue // of another user
		}
		for _, file := range files {
			to, err := fs.ReadLink(root, path.Join("proc", pid, "fd", file.Name()))
			if err != nil {
				continue
			}
			for _, inode := range inodes {
				if to == "socket:["+inode+"]" {
					name, _ := fs.ReadFile(root, path.Join("proc", pid, "comm"))
					return pid, strings.TrimSpace(string(name)), true
				}
			}
		}
	}
	return "", "", false
}
