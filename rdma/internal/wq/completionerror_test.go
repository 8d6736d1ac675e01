// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestCompletionErrorNumber: people search for "status 12".
func TestCompletionErrorNumber(t *testing.T) {
	err := CompletionErr(&ibv.WC{WRID: 7, QPNum: 0x11, Status: ibv.WC_RETRY_EXC_ERR})
	assert.ErrorContains(t, err, "QP 0x11: WR id 0x7: IBV_WC_RETRY_EXC_ERR (status 12): ")
	assert.NoError(t, CompletionErr(&ibv.WC{Status: ibv.WC_SUCCESS}))
}
