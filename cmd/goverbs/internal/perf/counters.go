// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// counters returns hw_counters and counters of the port, by name. A driver may have none.
func (r *session) counters() map[string]uint64 {
	all, err := r.device.HWCounters(r.port)
	if err != nil {
		all = map[string]uint64{}
	}
	if r.device.Info().IsSoftware() {
		return all
	}
	portCounters(os.DirFS("/"), r.device.Name(), int(r.port), all)
	return all
}

// portCounters adds the kernel's counters for the port. If the driver has a counter of that name, it takes precedence.
func portCounters(f fs.FS, device string, port int, all map[string]uint64) {
	dir := fmt.Sprintf("%s/%s/ports/%d/counters", sysfs.Dir, device, port)
	for _, name := range sysfs.List(f, dir) {
		n, err := strconv.ParseUint(sysfs.Text(f, dir+"/"+name), 10, 64)
		if _, have := all[name]; err == nil && !have {
			all[name] = n
		}
	}
}

// changes returns the differences other than 0.
func changes(before, after map[string]uint64) map[string]int64 {
	all := map[string]int64{}
	for name, n := range after {
		if by := int64(n - before[name]); by != 0 {
			all[name] = by
		}
	}
	return all
}

// writeCounters writes a line for each counter that changed.
func (r *Report) writeCounters(w io.Writer) (err error) {
	if len(r.Counters) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s counters during the test\n", r.Device)
	for _, name := range slices.Sorted(maps.Keys(r.Counters)) {
		_, err = fmt.Fprintf(w, "  %-32s %+d\n", name, r.Counters[name])
	}
	return err
}
