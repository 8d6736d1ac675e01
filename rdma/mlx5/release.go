// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/provider"
)

// compared lists the rdma-core releases whose libmlx5 conformance/provider has compared with the data path in Go,
// oldest first.
var compared = []string{"44.0", "56.1", "65.0"}

// Release returns the rdma-core release of the device's libmlx5, such as "65.0", and reports whether the data path in
// Go was compared with that release. The release is the end of the library's file name, such as libmlx5.so.1.27.65.0.
// It is "" if the name does not contain it, or if the device is closed or not an mlx5 device.
//
// [NewPath] rejects releases older than the compared ones. It accepts newer and unknown ones, because mlx5dv_init_obj
// is a stable interface, and the device defines the formats of queues.
func Release(d *rdma.Device) (release string, shown bool) {
	if d == nil {
		return "", false
	}
	c := d.C()
	if c == nil {
		return "", false
	}
	release = releaseOf(c)
	return release, slices.Contains(compared, release)
}

func releaseOf(c *ibv.Context) string {
	file, _ := provider.File(uintptr(c.Ops.PostSend)) // "" has no release
	return releaseIn(filepath.Base(file))
}

var fileName = regexp.MustCompile(`^libmlx5\.so\.1\.[0-9]+\.([0-9]+\.[0-9]+)$`)

// releaseIn returns the release at the end of a library's file name, or "".
func releaseIn(name string) string {
	if m := fileName.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return ""
}

// older reports whether release a is older than b.
func older(a, b string) bool {
	numbers := func(release string) []int {
		major, minor, _ := strings.Cut(release, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return []int{x, y}
	}
	return slices.Compare(numbers(a), numbers(b)) < 0
}
