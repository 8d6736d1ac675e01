// SPDX-License-Identifier: BSD-2-Clause

package ioctls

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm"
	"github.com/goverbs/goverbs/gen/ioctl"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/headers"
)

// TestRecorded checks that headers/ioctls has the tables in the modules of the guests' kernels, and in their drivers if
// they are in the cache. If an update of a kernel changes them, record it with gen ioctls.
func TestRecorded(t *testing.T) {
	recorded, err := model.ReadIoctls(headers.Ioctls())
	require.NoError(t, err)
	compared := 0
	for _, s := range recorded {
		image, err := vm.Cached(s.Kernel, vm.CacheDir())
		if errors.Is(err, vm.ErrNoImage) {
			continue
		}
		require.NoError(t, err)
		core, err := filepath.Glob(filepath.Join(vm.CacheDir(), s.Kernel+"-*/modules/ib_uverbs*.ko"))
		require.NoError(t, err)
		drivers, err := filepath.Glob(filepath.Join(vm.CacheDir(), "drivers-"+image.Version, "*.ko"))
		require.NoError(t, err)
		var attrs []model.IoctlAttr
		for _, path := range append(core, drivers...) {
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			more, _, err := ioctl.Read(file)
			require.NoError(t, err, path)
			attrs = append(attrs, more...)
		}
		slices.SortStableFunc(attrs, ioctl.Compare)
		if len(drivers) == 0 {
			s.Attrs = slices.DeleteFunc(s.Attrs, func(a model.IoctlAttr) bool { return a.Module != model.IoctlCore })
		}
		assert.Equal(t, attrs, s.Attrs, s.Kernel)
		compared++
		t.Logf("%s: %d attributes of %d drivers", s.Source, len(attrs), len(drivers))
	}
	if compared == 0 {
		t.Skip("no modules of a kernel: make vm WHAT=fetch")
	}
}
