// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/soft"
)

// open makes the fabric that the program's devices are on. GOVERBS_DEVICE names the device, as for programs in Go:
// soft@ADDRESS has a wire over that address, and soft0 has none. Without it, soft0 is at 127.0.0.1, which all processes
// of a user share, or at the next address that no other user has: programs on one machine can connect without
// configuration. If no address is available, soft0 has no wire, and a message reports that.
func open() (*soft.Fabric, error) {
	name := rights.Getenv("GOVERBS_DEVICE")
	switch address, wired := strings.CutPrefix(name, soft.Prefix); {
	case wired:
		at, err := netip.ParseAddr(address)
		if err != nil {
			return nil, fmt.Errorf("GOVERBS_DEVICE is %q: %w", name, err)
		}
		return capture(wiredTo(at))
	case name == "soft0":
		return soft.New(soft.Options{})
	case name != "":
		return nil, fmt.Errorf("GOVERBS_DEVICE is %q; want soft@ADDRESS or soft0", name)
	}
	return firstFree(wiredTo, searchLimit)
}

// searchLimit limits the search for a free address: each address that another user has can take a second.
const searchLimit = 10 * time.Second

// firstFree opens the first address that no other user has, or soft0 without a wire if there is none.
func firstFree(wired func(netip.Addr) (*soft.Fabric, error), limit time.Duration) (*soft.Fabric, error) {
	const last = 127<<24 | 250
	end := time.Now().Add(limit)
	for address := uint32(127<<24 | 1); ; address++ {
		at := netip.AddrFrom4([4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)})
		f, err := wired(at)
		switch {
		case err == nil:
			return capture(f, nil)
		case !errors.Is(err, syscall.EADDRINUSE) || address == last || time.Now().After(end):
			fmt.Fprintln(os.Stderr, "goverbs: soft0 cannot reach other processes:", err)
			return soft.New(soft.Options{})
		}
	}
}

// minFD is the lowest descriptor that the device uses. Some programs need low ones themselves: netcat expects its
// connection among the first 16.
const minFD = 32

// maxFDs is an upper bound of the descriptors that the device opens at first. dropin/library/call.c has checked that
// they are available.
const maxFDs = 16

// reserveLow keeps the low descriptors free for the program, if there are enough others: files opened before end is
// called get higher ones.
func reserveLow() (end func()) {
	var low, others []int
	for len(others) < maxFDs {
		fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		switch {
		case err != nil:
			closeAll(append(low, others...))
			return func() {}
		case fd < minFD:
			low = append(low, fd)
		default:
			others = append(others, fd)
		}
	}
	closeAll(others)
	return func() { closeAll(low) }
}

func closeAll(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}

func wiredTo(address netip.Addr) (*soft.Fabric, error) {
	return soft.New(soft.Options{Devices: []soft.DeviceOptions{{Name: "soft0", Address: address, Wire: true}}})
}

// capture starts the packet capture of a fabric with a wire, if the environment requests one.
func capture(f *soft.Fabric, err error) (*soft.Fabric, error) {
	if err != nil {
		return nil, err
	}
	if err := f.CaptureByEnvironment(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
