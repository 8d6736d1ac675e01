// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestCompletionErrorNumber: the text contains the status number, because users search for "status 12".
func TestCompletionErrorNumber(t *testing.T) {
	err := CompletionErr(&ibv.WC{WRID: 7, QPNum: 0x11, Status: ibv.WC_RETRY_EXC_ERR})
	assert.ErrorContains(t, err, "QP 0x11: WR id 0x7: IBV_WC_RETRY_EXC_ERR (status 12): ")
	assert.NoError(t, CompletionErr(&ibv.WC{Status: ibv.WC_SUCCESS}))
}

// TestCompletionErrorJSON: the JSON of a failed completion includes its error.
func TestCompletionErrorJSON(t *testing.T) {
	wc := ibv.WC{WRID: 7, QPNum: 0x11, Status: ibv.WC_RETRY_EXC_ERR, VendorErr: 0x81}
	a, err := json.Marshal(wc)
	require.NoError(t, err)
	e := CompletionErr(&wc)
	b, err := json.Marshal(e)
	require.NoError(t, err)
	assert.JSONEq(t, string(a), string(b))
	var back CompletionError
	require.NoError(t, json.Unmarshal(a, &back))
	assert.Equal(t, e, &back)
}
