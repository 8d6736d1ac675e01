// SPDX-License-Identifier: BSD-2-Clause

package ioctls

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/ioctl"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/headers"
)

// TestRecorded checks that headers/ioctls has the tables in the modules of the guests' kernels. If an update of a
// kernel changes them, record it with gen ioctls.
func TestRecorded(t *testing.T) {
	recorded, err := model.ReadIoctls(headers.Ioctls())
	require.NoError(t, err)
	compared := 0
	for _, s := range recorded {
		modules, err := filepath.Glob("../cache/" + s.Kernel + "-*/modules/ib_uverbs*.ko")
		require.NoError(t, err)
		var attrs []model.IoctlAttr
		for _, path := range modules {
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			more, _, err := ioctl.Read(file)
			require.NoError(t, err, path)
			attrs = append(attrs, more...)
		}
		if len(modules) > 0 {
			slices.SortStableFunc(attrs, ioctl.Compare)
			assert.Equal(t, attrs, s.Attrs, s.Kernel)
			compared++
		}
	}
	if compared == 0 {
		t.Skip("no modules of a kernel: make vm WHAT=fetch")
	}
}
