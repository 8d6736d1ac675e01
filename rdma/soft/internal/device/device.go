// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// Capabilities of a device.
const (
	maxInline  = 1024
	maxQPWR    = 1 << 15
	maxCQE     = 1 << 22
	maxSRQWR   = 1 << 15
	maxReads   = 128
	maxMRSize  = 1 << 47
	portNum    = 1
	maxTags    = 1 << 14
	maxTagOps  = 1 << 12
	ackDelay   = 15        // code of the time within which an acknowledgement comes
	clockKHz   = 1_000_000 // cycles are nanoseconds
	maxSRQs    = 1 << 14
	gidEntries = 256 // the range of an index
)

type deviceList struct {
	on      *Engine
	devices []*device
}

func freeDeviceList(of ibv.Ptr[ibv.Ptr[ibv.Device]]) runtime.Errno {
	l := find[deviceList](of)
	if l == nil {
		return 0
	}
	l.on.mu.Lock()
	defer l.on.Unlock()
	if mayGo(l.on, of, l, never) == 0 {
		forget(of.Deref())
		for _, d := range l.devices {
			d.lists--
			d.release()
		}
	}
	return 0
}

// text returns the bytes before the first NUL.
func text(b []byte) string {
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

func (d *device) Name() string { return text(d.record.Name[:]) }

// tell queues an event of the port for every context of the device.
func (d *device) tell(event ibv.EventType) {
	for _, c := range d.contexts {
		c.portEvent(event)
	}
}

// HWCounters returns the counters of a context's device, or nil if the context has no device. Package rdma calls it:
// for a device that another library has opened, it has the context but not the fabric.
func (h *host) HWCounters(c *ibv.Context) map[string]uint64 {
	of := locked[context](mem.AddressOf(c))
	if of == nil {
		return nil
	}
	defer of.fabric().Unlock()
	if of.device.gone {
		return nil
	}
	return of.device.counters()
}
