// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"fmt"
	"maps"
	"math"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// Resources counts the kernel's resources of the guest's device, for all processes: "pd", "cq", "qp", "mr", "ctx",
// "srq", "cm_id".
func Resources() (map[string]uint64, error) {
	if os.Getenv(wire.EnvGuest) == Soft {
		return softResources()
	}
	if file := os.Getenv(wire.EnvCounts); file != "" {
		return emulatedResources(file)
	}
	all, err := netlink.RdmaResourceList()
	if err != nil {
		return nil, fmt.Errorf("counting RDMA resources: %w", err)
	}
	for _, device := range all {
		if device.Name == os.Getenv(wire.EnvDevice) {
			return device.RdmaResourceSummaryEntries, nil
		}
	}
	return nil, fmt.Errorf("counting RDMA resources: the kernel has no device %q", os.Getenv(wire.EnvDevice))
}

// emulatedResources reads the resource counts of this process in an emulated kernel.
func emulatedResources(file string) (map[string]uint64, error) {
	text, err := os.ReadFile(file)
	counts := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		var kind string
		var n uint64
		if _, err := fmt.Sscan(line, &kind, &n); err != nil {
			return nil, fmt.Errorf("counting RDMA resources: %s: %q: %w", file, line, err)
		}
		if kind != "-" {
			counts[kind] = n
		}
	}
	return counts, err
}

// Main runs a package's tests in a guest, and fails if the kernel holds more resources afterwards. It checks before the
// process exits, since the exit releases everything.
//
// Resources in notCounted may remain: librdmacm keeps contexts of opened devices until the process exits.
func Main(m interface{ Run() int }, notCounted ...string) {
	if os.Getenv(wire.EnvGuest) == "" {
		os.Exit(m.Run()) // report the reason of each skipped test
	}
	before, err := Resources()
	status := m.Run()
	if err == nil {
		var left string
		for _, kind := range notCounted {
			before[kind] = math.MaxUint64
		}
		if left, err = Leaks(before); err == nil && left != "" {
			err = fmt.Errorf("the tests leaked %s%s", left, leakHint(status))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// leakHint returns a hint about the cause of a leak: failed tests, or the remaining goroutines.
func leakHint(status int) string {
	if status != 0 {
		return "; some tests failed, and may not have closed their objects"
	}
	b := make([]byte, 1<<20)
	return "; no test failed, remaining goroutines:\n" + string(b[:goruntime.Stack(b, true)])
}

// Leaks describes resources that the kernel did not hold before, or returns "".
func Leaks(before map[string]uint64) (string, error) {
	now, err := Resources()
	if err != nil {
		return "", err
	}
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		if now[kind] > before[kind] {
			all = append(all, fmt.Sprintf("%d %s", now[kind]-before[kind], kind))
		}
	}
	return strings.Join(all, ", "), nil
}
