// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestHWCounters compares Soft-RoCE's counters in sysfs with the counters of the same names of the software device at
// the other end.
func TestHWCounters(t *testing.T) {
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		a, b := pair(t, options{kind: ibv.QPT_RC})
		counts := func(e *end) map[string]uint64 {
			all, err := e.q.PD().Device().HWCounters(1)
			require.NoError(t, err)
			return all
		}
		kernel, softQP := a, b
		if b.kernel {
			kernel, softQP = b, a
		}
		for _, name := range slices.Sorted(maps.Keys(counts(kernel))) {
			if name != "ack_deferred" && name != "lifespan" { // these do not count packets
				assert.Contains(t, counts(softQP), name)
			}
		}
		ends := [2]*end{a, b}
		before := [2]map[string]uint64{counts(a), counts(b)}
		since := func(at int, name string) uint64 { return counts(ends[at])[name] - before[at][name] }
		const messages, size = 10, 5001 // packets of 1024 bytes
		for range messages {
			b.recv(0, size)
			a.post(func(batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(1).Add(a.mr.SGE(0, size)) })
			a.done()
			b.done()
		}
		assert.EqualValues(t, messages, since(0, "rdma_sends"))
		assert.EqualValues(t, messages, since(1, "rdma_recvs"))
		assert.GreaterOrEqual(t, since(0, "sent_pkts"), uint64(messages*5))
		_, countsBytes := counts(kernel)["sent_bytes"] // since Linux 7
		for i := range 2 {                             // the last packets may be in flight
			assert.Eventually(t, func() bool { return since(i, "sent_pkts") == since(1-i, "rcvd_pkts") }, opTimeout,
				10*time.Millisecond, "end %d sent %d packets, and %d arrived", i, since(i, "sent_pkts"),
				since(1-i, "rcvd_pkts"))
			if countsBytes {
				assert.Eventually(t, func() bool { return since(i, "sent_bytes") == since(1-i, "rcvd_bytes") },
					opTimeout, 10*time.Millisecond, "end %d sent %d bytes, and %d arrived", i, since(i, "sent_bytes"),
					since(1-i, "rcvd_bytes"))
			}
		}
	})
}
