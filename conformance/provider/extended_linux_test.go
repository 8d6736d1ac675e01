// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	goruntime "runtime"
	"testing"
)

// TestExtendedQueues: programs that poll an extended queue to its end, where ibv_next_poll finds nothing and
// ibv_end_poll follows, get each completion once, and send whole messages. Soft-RoCE's library of 44.0 does neither.
func TestExtendedQueues(t *testing.T) {
	const tests = "-test.run=^(TestExtendedQueueHasEachCompletionOnce|TestProgramsPollOneQueueAtOnce|" +
		"TestProgramsSendWholeMessages)$"
	all := []*Emulated{emulated(t)}
	if os.Getenv(envAll) != "" {
		for _, release := range []string{"56.1", "44.0"} {
			all = append(all, emulatedFor(t, release, goruntime.GOARCH))
		}
	}
	for _, e := range all {
		program := testProgram(t, e, "../vm/objects")
		for path, adapter := range map[string]*Emulated{
			pathC: e, pathGo: e, pathMLX4: e.As(MLX4), pathERDMA: e.As(ERDMA),
		} {
			t.Run(e.libraries.Release+"/"+path, func(t *testing.T) {
				least := 1 // libmlx4 has no extended queue pairs
				if path == pathERDMA {
					least = -1 // and liberdma no extended queues
				}
				runSuite(t, adapter, path, least, program, tests)
			})
		}
	}
}
