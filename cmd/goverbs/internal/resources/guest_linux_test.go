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

// TestGuestBound: the kernel takes our request for counters of queue pairs, and gives as many as it gives rdma of
// iproute2: none, since Soft-RoCE has none.
func TestGuestBound(t *testing.T) {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("this is no guest: make vm, or go run ./conformance/vm/cmd/vmtest")
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
	t.Logf("the kernel's answer to us: %d messages, %v", len(messages), err)
	assert.NoError(t, err)
	assert.Len(t, h.Read().Bound, len(all))
}
