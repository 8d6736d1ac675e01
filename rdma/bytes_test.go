// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The documentation says how many bytes the state of a queue pair and of a completion queue takes, on machines of 64
// bits.
func TestStateInBytes(t *testing.T) {
	for file, says := range map[string]string{
		"qp.go": fmt.Sprintf("QP takes %d bytes", unsafe.Sizeof(QP{})),
		"cq.go": fmt.Sprintf("CQ takes %d bytes", unsafe.Sizeof(CQ{})+unsafe.Sizeof(CompletionQueue{})),
		"queues.go": fmt.Sprintf("send queue takes %d bytes, a receive queue %d", unsafe.Sizeof(SendQueue{}),
			unsafe.Sizeof(RecvQueue{})),
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if unsafe.Sizeof(uintptr(0)) == 8 {
			said := strings.Contains(strings.ReplaceAll(string(text), "\n// ", " "), says)
			assert.True(t, said, "%s does not say: %s", file, says)
		}
	}
}
