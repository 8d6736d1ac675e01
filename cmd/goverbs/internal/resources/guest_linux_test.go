// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/uapi"
)

// TestGuestBound checks that the kernel accepts our request for QP counters and returns as many as to iproute2's rdma:
// none on Soft-RoCE.
func TestGuestBound(t *testing.T) {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("runs in a guest: make vm, or go run ./conformance/vm/cmd/vmtest")
	}
	out, err := exec.Command("rdma", "statistic", "qp", "show", "-j").Output()
	require.NoError(t, err)
	t.Logf("rdma statistic qp show -j: %s", out)
	var all []any
	if len(out) > 0 {
		require.NoError(t, json.Unmarshal(out, &all))
	}
	h := Here()
	devices, err := h.Ask(uapi.RDMA_NLDEV_CMD_GET)
	require.NoError(t, err)
	messages, err := h.Ask(uapi.RDMA_NLDEV_CMD_STAT_GET,
		attributes(devices[0]).number32(uapi.RDMA_NLDEV_ATTR_DEV_INDEX), 0, uint32(uapi.RDMA_NLDEV_ATTR_RES_QP))
	t.Logf("answer of the kernel: %d messages, %v", len(messages), err)
	assert.NoError(t, err)
	assert.Len(t, h.Read().Bound, len(all))
}
