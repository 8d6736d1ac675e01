// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

const device = "rxe0"

// network configures the loopback device, and a network device with addresses and with Soft-RoCE, which does not work
// on the loopback device. It returns the environment variables that describe them.
func network(c wire.Config) ([]string, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("lo: %w", err)
	}
	if c.NoDevice {
		return nil, nil
	}
	link, err := netdev(c)
	if err != nil {
		return nil, err
	}
	name := link.Attrs().Name
	own, peer := net.IPv4(10, 77, 0, byte(1+c.Host)), net.IPv4(10, 77, 0, byte(2-c.Host))
	six := net.ParseIP(fmt.Sprintf("fd77::%d", 1+c.Host))
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("%s up: %w", name, err)
	}
	for _, a := range []*net.IPNet{{IP: own, Mask: net.CIDRMask(24, 32)}, {IP: six, Mask: net.CIDRMask(64, 128)}} {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: a}); err != nil {
			return nil, fmt.Errorf("%s: address %v: %w", name, a, err)
		}
	}
	if err := netlink.RdmaLinkAdd(device, "rxe", name); err != nil {
		return nil, fmt.Errorf("%s on %s: %w", device, name, err)
	}
	if err := active(own); err != nil {
		return nil, err
	}
	env := []string{wire.EnvDevice + "=" + device, wire.EnvNetdev + "=" + name, wire.EnvAddress + "=" + own.String()}
	if c.Pair {
		env = append(env, wire.EnvPeer+"="+peer.String())
	}
	return env, nil
}

// netdev returns the network device for Soft-RoCE: a dummy, or the one that connects to the other guest.
func netdev(c wire.Config) (netlink.Link, error) {
	if !c.Pair {
		link := &netlink.Dummy{LinkAttrs: netlink.NewLinkAttrs()}
		link.Name = "rdma0"
		if err := netlink.LinkAdd(link); err != nil {
			return nil, fmt.Errorf("dummy device: %w", err)
		}
		return link, nil
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, link := range all {
		if link.Type() == "device" && link.Attrs().Name != "lo" {
			return link, nil
		}
	}
	return nil, errors.New("the guest has no network device")
}

// active waits until the port is active and has a GID for the address, which the kernel creates asynchronously.
func active(own net.IP) error {
	port := "/sys/class/infiniband/" + device + "/ports/1/"
	want := gid(own)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile(port + "state")
		if err != nil {
			return err
		}
		if strings.Contains(string(state), "ACTIVE") && hasGID(port, want) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: the port is %s, GID %s did not appear within 10 s", device,
				strings.TrimSpace(string(state)), want)
		}
	}
}

// gid returns the GID of an IPv4 address as the kernel prints it.
func gid(ip net.IP) string {
	var b strings.Builder
	for i, octet := range ip.To16() {
		if i > 0 && i%2 == 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x", octet)
	}
	return b.String()
}

func hasGID(port, want string) bool {
	files, _ := filepath.Glob(port + "gids/*")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == want {
			return true
		}
	}
	return false
}
