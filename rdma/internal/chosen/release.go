// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"os"
	"path"
	"strings"

	"github.com/goverbs/goverbs/generated/libibverbs"
)

// release returns the release of rdma-core whose libibverbs this process has open, or "" if it is unknown.
func release() string {
	if libibverbs.Library.Open() != nil {
		return ""
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	return releaseIn(string(maps))
}

// releaseIn finds libibverbs among the mapped files of a process. The name of the file ends with the release:
// libibverbs.so.1.14.44.0.
func releaseIn(maps string) string {
	for line := range strings.Lines(maps) {
		if at := strings.IndexByte(line, '/'); at >= 0 {
			name := strings.TrimSpace(path.Base(line[at:]))
			if version, ok := strings.CutPrefix(name, "libibverbs.so."); ok {
				if parts := strings.Split(version, "."); len(parts) == 4 {
					return parts[2] + "." + parts[3]
				}
			}
		}
	}
	return ""
}
