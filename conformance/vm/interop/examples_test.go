// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// TestExamples runs each example as two processes.
func TestExamples(t *testing.T) {
	testbed.Kernel(t)
	for i, e := range []struct{ name, server, client string }{
		{"one-sided", `in my memory: "hello from the other side"`, `read back: "hello from the other side"`},
		{"atomic", "", "4 goroutines counted to 400"},
		{"srq-server", "answered 400 requests of 8 clients with 16 buffers", ""},
	} {
		t.Run(e.name, func(t *testing.T) {
			port := 18400 + i
			p := program{name: e.name, dash: "-",
				args: []string{"-device", os.Getenv(wire.EnvDevice), "-port", strconv.Itoa(port)}}
			server, client := play(t, p.with("-listen"), p.with("127.0.0.1"), port)
			assert.Contains(t, server, e.server)
			assert.Contains(t, client, e.client)
		})
	}
}
