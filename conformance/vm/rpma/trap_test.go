// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rpma"
)

// guard serves a region that grants flushes but not reads, with a peer created with these options.
func guard(o rpma.PeerOptions) passive {
	return func(t *testing.T, at netip.AddrPort, ready func()) string {
		return newRoleWith(t, at, rpma.Local, o).serve(rpma.WriteDst|rpma.FlushVisibility, ready)
	}
}

// flush flushes once and stores the error of its completion in reason.
func flush(o rpma.PeerOptions, reason *string) active {
	return func(t *testing.T, at netip.AddrPort) string {
		r := newRoleWith(t, at, rpma.Remote, o)
		r.regions(size, localUsage)
		r.connect(0)
		r.must(r.conn.Flush(r.remote, 0, 8, rpma.Visibility, rpma.Always, 1))
		wc := r.next(false)
		r.print("completion: context %d status %d", wc.WRID, wc.Status)
		if err := r.conn.CompletionErr(&wc); err != nil {
			*reason = err.Error()
		}
		r.must(r.conn.Disconnect())
		return r.end()
	}
}

// TestFlushMismatch checks flushes between sides with different configurations. librpma flushes natively if the device
// supports it, and so does package rpma unless it is configured to flush with reads. If the sides differ, the flush is
// rejected, and package rpma's error names the configuration of each side.
func TestFlushMismatch(t *testing.T) {
	device := newRole(t, address(7680), rpma.Local)
	native := device.peer.NativeFlush()
	device.must(device.peer.Close())
	device.must(device.device.Close())
	if !native {
		t.Skip("both sides flush with reads: the device does not support native flush; Linux 6.12 does")
	}
	var alike, reads, natively string
	reading := rpma.PeerOptions{ReadFlush: true}
	refused := ibv.WC_REM_ACCESS_ERR
	f, _ := play(t, 7681, flush(reading, &reads), guard(rpma.PeerOptions{}))
	assert.Contains(t, f, completed(refused))
	assert.Contains(t, reads, "this side flushes with RDMA READs, which the peer's region does not permit")
	f, _ = play(t, 7682, flush(rpma.PeerOptions{}, &natively), guard(reading))
	assert.Contains(t, f, completed(refused))
	assert.Contains(t, natively, "this side flushes natively, which the peer's region does not permit")

	inC(t)
	reads = ""
	f, _ = play(t, 7683, flush(rpma.PeerOptions{}, &alike), passiveInC("guard"))
	assert.Contains(t, f, completed(ibv.WC_SUCCESS))
	assert.Empty(t, alike)
	f, _ = play(t, 7684, activeInC("flush"), guard(rpma.PeerOptions{}))
	assert.Contains(t, f, completed(ibv.WC_SUCCESS))
	f, _ = play(t, 7685, flush(reading, &reads), passiveInC("guard"))
	assert.Contains(t, f, completed(refused))
	assert.Contains(t, reads, "this side flushes with RDMA READs, which the peer's region does not permit")
	f, _ = play(t, 7686, activeInC("flush"), guard(reading))
	assert.Contains(t, f, completed(refused))
}

// completed returns the line that C prints for a flush with this status.
func completed(status ibv.WCStatus) string {
	return fmt.Sprintf("completion: context 1 status %d", status)
}
