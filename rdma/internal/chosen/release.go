// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"path/filepath"
	"strings"

	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/provider"
)

// release returns the rdma-core release of the libibverbs that this process has open, or "" if it is unknown.
func release() string {
	address, err := libibverbs.Library.Symbol("ibv_get_device_list")
	if err != nil || address == 0 {
		return ""
	}
	file, _ := provider.File(address)
	return releaseIn(filepath.Base(file))
}

// releaseIn returns the rdma-core release at the end of libibverbs' file name, such as libibverbs.so.1.14.44.0.
func releaseIn(name string) string {
	version, _ := strings.CutPrefix(name, "libibverbs.so.")
	if parts := strings.Split(version, "."); len(parts) == 4 && version != name {
		return parts[2] + "." + parts[3]
	}
	return ""
}
