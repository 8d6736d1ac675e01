// SPDX-License-Identifier: BSD-2-Clause

package freebsd

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/diff"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/headers"
)

var update = flag.Bool("update", false, "write differences.txt")

// TestDifferences: differences.txt is the current report of what differs between rdma-core and FreeBSD, without Go
// identifiers, which gen diff adds.
func TestDifferences(t *testing.T) {
	_, all, err := recorded.Releases()
	require.NoError(t, err)
	r, err := diff.Recorded(all, headers.Primary("rdma-core"), "freebsd-"+headers.Primary("freebsd"), nil)
	require.NoError(t, err)
	var text strings.Builder
	for line := range strings.Lines(r.Text()) {
		text.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if *update {
		require.NoError(t, os.WriteFile("differences.txt", []byte(text.String()), 0o644))
	}
	want, err := os.ReadFile("differences.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), text.String(), "run go test ./conformance/freebsd -update and read the difference")
}

// TestSizes: the objects that libibverbs allocates have other sizes than on Linux, so that a program must not use
// generated/ibv on FreeBSD.
func TestSizes(t *testing.T) {
	primaries, _, err := recorded.Releases()
	require.NoError(t, err)
	size := func(project, tag string) (n int64) {
		for _, r := range primaries {
			if r.Project == project {
				n = sizeOf(t, r, tag)
			}
		}
		return n
	}
	for tag, want := range map[string][2]int64{ // Linux, FreeBSD
		"ibv_srq": {128, 56}, "ibv_cq": {128, 56}, "ibv_cq_ex": {288, 200}, "ibv_qp": {160, 88}, "ibv_wq": {152, 80},
		"ibv_context": {328, 296}, "ibv_wc": {48, 48}, "ibv_send_wr": {128, 128}, "ibv_sge": {16, 16},
		"sockaddr_in6": {28, 28},
	} {
		assert.Equal(t, want, [2]int64{size("rdma-core", tag), size("freebsd", tag)}, tag)
	}
}

func sizeOf(t *testing.T, r *model.Release, tag string) int64 {
	t.Helper()
	for _, h := range r.Headers {
		for _, rec := range h.Records {
			if rec.Tag == tag {
				return rec.Size.On("amd64")
			}
		}
	}
	t.Fatalf("%s has no %s", r, tag)
	return 0
}
