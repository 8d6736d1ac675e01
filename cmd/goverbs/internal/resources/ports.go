// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// lifespan is a file among the counters that is not one: the cache time in milliseconds.
const lifespan = "lifespan"

func port(f fs.FS, p *sysfs.Port) Port {
	return Port{Port: p.Number, State: p.State, Physical: p.Phys, Link: p.Link,
		Rate: rate(sysfs.Text(f, p.Dir+"/rate")), Counters: counters(f, p.Dir+"/counters"),
		Hardware: counters(f, p.Dir+"/hw_counters")}
}

// counters returns the numbers in the files of a directory.
func counters(f fs.FS, dir string) map[string]uint64 {
	all := map[string]uint64{}
	for _, name := range sysfs.List(f, dir) {
		if n, err := strconv.ParseUint(sysfs.Text(f, dir+"/"+name), 10, 64); err == nil && name != lifespan {
			all[name] = n
		}
	}
	return all
}

// rate parses a rate such as 2.5 Gb/sec (1X SDR) to bits per second. It returns 0 if invalid.
func rate(text string) uint64 {
	number, _, ok := strings.Cut(text, " Gb/sec")
	gigabits, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(gigabits >= 0 && gigabits < 1e9) {
		return 0
	}
	return uint64(math.Round(gigabits * 1e9))
}
