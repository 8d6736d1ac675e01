// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// Software is the socket of a software device with an address. The objects of software devices are only in the memory
// of their programs.
type Software struct {
	Address string `json:"address"`       // of the device, with the port
	PID     uint32 `json:"pid,omitempty"` // 0 if this user may not see the owner
	Owner   string `json:"owner"`
	Waiting uint64 `json:"receive_queue_bytes"` // packets not yet read
	Drops   uint64 `json:"drops"`               // packets dropped because the socket's buffer was full
}

// socketPrefix is the prefix of the Unix socket names that rdma/soft/internal/udp uses.
const socketPrefix = "@goverbs-udp/"

// software lists the sockets of software devices in this network namespace.
func software(f fs.FS) []Software {
	names := map[string]netip.AddrPort{} // by inode of the Unix socket
	for line := range strings.Lines(sysfs.Text(f, "proc/net/unix")) {
		words := strings.Fields(line)
		if len(words) < 8 || !strings.HasPrefix(words[7], socketPrefix) {
			continue
		}
		at, member, _ := strings.Cut(strings.TrimPrefix(words[7], socketPrefix), "/")
		address, err := netip.ParseAddrPort(at)
		if _, err2 := strconv.Atoi(member); err == nil && err2 == nil {
			names[words[6]] = address
		}
	}
	if len(names) == 0 {
		return nil
	}
	packets := datagrams(f)
	var all []Software
	for _, dir := range sysfs.List(f, "proc") {
		pid, err := strconv.ParseUint(dir, 10, 32)
		if err != nil {
			continue
		}
		descriptors := sockets(f, "proc/"+dir+"/fd")
		for _, number := range descriptors {
			address, ok := names[number]
			if !ok {
				continue
			}
			delete(names, number)
			one := Software{Address: address.String(), PID: uint32(pid), Owner: command(f, uint32(pid))}
			// Members hold the sockets of earlier members, too, so that the owner of several is ambiguous.
			for _, p := range packets {
				if p.at == address && slices.Contains(descriptors, p.number) {
					one.Waiting, one.Drops = max(one.Waiting, p.waiting), max(one.Drops, p.drops)
				}
			}
			all = append(all, one)
		}
	}
	for _, address := range names {
		all = append(all, Software{Address: address.String()})
	}
	slices.SortFunc(all, func(a, b Software) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.PID, b.PID))
	})
	return all
}

// sockets returns the inodes of a process's sockets.
func sockets(f fs.FS, dir string) (numbers []string) {
	for _, name := range sysfs.List(f, dir) {
		if to, err := fs.ReadLink(f, dir+"/"+name); err == nil {
			if number, ok := strings.CutPrefix(to, "socket:["); ok {
				numbers = append(numbers, strings.TrimSuffix(number, "]"))
			}
		}
	}
	return numbers
}

// datagram is a line of the kernel's tables of UDP sockets.
type datagram struct {
	at             netip.AddrPort
	number         string
	waiting, drops uint64
}

func datagrams(f fs.FS) (all []datagram) {
	for _, name := range []string{"proc/net/udp", "proc/net/udp6"} {
		for line := range strings.Lines(sysfs.Text(f, name)) {
			words := strings.Fields(line)
			if len(words) < 13 {
				continue
			}
			at, ok := address(words[1])
			_, waiting, _ := strings.Cut(words[4], ":")
			bytes, err := strconv.ParseUint(waiting, 16, 64)
			drops, err2 := strconv.ParseUint(words[12], 10, 64)
			if ok && err == nil && err2 == nil {
				all = append(all, datagram{at, words[9], bytes, drops})
			}
		}
	}
	return all
}

// littleEndian reports the byte order of this CPU.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// address parses an address of those tables: 32-bit words in the CPU's byte order, in hexadecimal.
func address(text string) (at netip.AddrPort, ok bool) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw)%4 != 0 {
		return at, false
	}
	for word := range slices.Chunk(raw, 4) {
		if littleEndian {
			slices.Reverse(word)
		}
	}
	a, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a.Unmap(), uint16(number)), ok
}
