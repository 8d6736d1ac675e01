// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProgramsInline checks that what programs call in their loops is inlined into them, although its types are those
// of a package that they do not import; see rdma/queues.go.
func TestProgramsInline(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m", "-o", t.TempDir(), "./testdata/inlines").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, call := range []string{
		"wq.(*SendBatch).Reset", "wq.(*SendBatch).Write", "wq.(*SendBatch).Read", "wq.(*SendBatch).Send",
		"wq.(*SendBatch).WR", "wq.SendRequest.SGE", "wq.SendRequest.Add", "wq.SendRequest.Signaled",
		"wq.SendRequest.Flags", "wq.SendRequest.UD", "wq.(*RecvBatch).Recv", "wq.RecvRequest.SGE",
		"wq.(*SendQueue).Post", "wq.(*RecvQueue).Post",
	} {
		assert.Contains(t, string(out), "inlining call to "+call)
	}
}
