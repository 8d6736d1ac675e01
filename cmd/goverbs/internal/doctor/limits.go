// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// minMemory is the smallest amount of memory that a program must be able to register.
const minMemory = 1 << 20

// limit returns a limit of /proc/self/limits, and whether it is limited at all.
func (h *Host) limit(name string) (uint64, bool) {
	for line := range strings.Lines(h.text("proc/self/limits")) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		if fields := strings.Fields(rest); len(fields) > 0 && fields[0] != "unlimited" {
			n, err := strconv.ParseUint(fields[0], 10, 64)
			return n, err == nil
		}
	}
	return math.MaxUint64, false
}

// hasIPCLock reports whether this process has CAP_IPC_LOCK, which lifts the limit of locked memory.
func (h *Host) hasIPCLock() bool {
	const lock = 14
	for line := range strings.Lines(h.text("proc/self/status")) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && caps>>lock&1 == 1
		}
	}
	return false
}

func (h *Host) checkLimits() (all []Finding) {
	if n, limited := h.limit("Max locked memory"); limited && n < minMemory && !h.hasIPCLock() {
		all = append(all, found("limits.memlock", "this process", fmt.Sprintf("%d bytes", n)))
	}
	if n, limited := h.limit("Max open files"); limited && n < 256 {
		all = append(all, found("limits.files", "this process", fmt.Sprint(n)))
	}
	return all
}

// cgroup returns the control group of this process in the unified hierarchy, such as /user.slice.
func (h *Host) cgroup() string {
	for line := range strings.Lines(h.text("proc/self/cgroup")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return strings.TrimSuffix(name, "/")
		}
	}
	return ""
}

func (h *Host) checkCgroup() (all []Finding) {
	group := h.cgroup()
	dir := "sys/fs/cgroup" + group
	now := counts(h.text(dir + "/rdma.current"))
	limits := counts(h.text(dir + "/rdma.max"))
	for _, device := range slices.Sorted(maps.Keys(limits)) {
		for _, kind := range slices.Sorted(maps.Keys(limits[device])) {
			n := limits[device][kind]
			if have := now[device][kind]; have >= n {
				all = append(all, found("cgroup.rdma", device, fmt.Sprintf("%s: %d of %d", kind, have, n),
					device+" "+kind, group))
			}
		}
	}
	const little = 64 << 20
	if n, ok := h.number(dir + "/memory.max"); ok && n < little && len(h.all()) > 0 {
		all = append(all, found("cgroup.memory", "the control group "+group+"/", fmt.Sprintf("%d bytes", n), group))
	}
	return all
}

// counts parses lines such as "mlx5_0 hca_handle=2 hca_object=2000". It omits "max" (no limit).
func counts(text string) map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		all[fields[0]] = map[string]uint64{}
		for _, field := range fields[1:] {
			kind, value, _ := strings.Cut(field, "=")
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				all[fields[0]][kind] = n
			}
		}
	}
	return all
}
