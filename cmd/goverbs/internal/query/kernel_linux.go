// SPDX-License-Identifier: BSD-2-Clause

package query

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// interfaceName returns the name of a network interface of this namespace, or "".
func interfaceName(index uint32) string {
	i, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return ""
	}
	return i.Name
}

// kernel returns the attributes of a device and its slot from sysfs.
func kernel(device string) (f Fields) {
	dir := filepath.Join("/sys/class/infiniband", device)
	for _, name := range []string{"board_id", "hca_type", "hw_rev", "node_desc", "parent", "device/numa_node",
		"device/current_link_speed", "device/current_link_width"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			s := strings.TrimSpace(string(b))
			f = append(f, Field{filepath.Base(name), s, s})
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "device/driver")); err == nil {
		f = append(f, Field{"driver", filepath.Base(target), filepath.Base(target)})
	}
	return f
}

// resources returns the kernel's object counts of a device.
func resources(device string) (f Fields) {
	all, err := netlink.RdmaResourceList()
	if err != nil {
		return nil // an old kernel, or no permission
	}
	for _, one := range all {
		if one.Name != device {
			continue
		}
		for kind, n := range one.RdmaResourceSummaryEntries {
			f = append(f, number(kind, n))
		}
	}
	slices.SortFunc(f, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return f
}
