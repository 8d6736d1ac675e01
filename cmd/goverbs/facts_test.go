// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLayout(t *testing.T) {
	code, out, problems := goverbs("layout", "ibv_sge", "ibv.DeviceAttr")
	require.Zero(t, code, problems)
	assert.Contains(t, out, "struct ibv_sge: ibv.SGE, 16 bytes, aligned to 8\n"+
		"OFFSET  SIZE  MEMBER\n0       8     addr\n")
	assert.Contains(t, out, "\nstruct ibv_device_attr: ibv.DeviceAttr, 232 bytes")
	assert.Contains(t, out, "(padding)")
	_, out, _ = goverbs("--json", "layout", "SGE")
	var all []struct {
		C       string
		Members []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all, 1)
	assert.Len(t, all[0].Members, 3)
	code, _, problems = goverbs("layout", "send_w")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, problems, "ibv_send_wr")
	_, out, _ = goverbs("layout")
	assert.Contains(t, out, "struct rdma_cm_id ")
}

func TestTables(t *testing.T) {
	code, out, problems := goverbs("validity", "post_send")
	require.Zero(t, code, problems)
	assert.Contains(t, out, "RDMA_READ")
	code, _, problems = goverbs("validity", "nothing")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, problems, "no table nothing; there are ")
	_, out, _ = goverbs("tables", "--html")
	assert.Contains(t, out, "</html>")
}

func TestDiff(t *testing.T) {
	code, out, problems := goverbs("diff", "librpma-1.3.0", "librpma-1.3.0")
	require.Zero(t, code, problems)
	assert.Contains(t, out, "librpma")
	code, _, problems = goverbs("diff", "1.0", "65.0")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, problems, "release 1.0 is not recorded (recorded: ")
}
