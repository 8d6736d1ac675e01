// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"runtime"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
)

// keeping decides whether the goroutine that waits for a reactor's completions keeps its thread. That is faster for its
// own stream. Other goroutines wait longer: they get the processor of a thread that sleeps in a system call only when
// Go's scheduler looks for such. So, unless the program has said so, it keeps the thread only where nothing but its own
// stream's completions has come lately, and no other goroutine wants to run.
type keeping struct {
	keep    func(bool) // the reactor's channel's KeepThread
	always  bool       // the program has said so
	kept    bool
	own     int // lately, as far as ownBefore
	yielded time.Time
}

const (
	ownBefore = 16                   // waits that bring only completions of the stream that waits, before it keeps its thread
	lookEvery = 4 * time.Millisecond // for goroutines that want to run
	crowded   = time.Millisecond     // that those take, if they do not wait themselves soon
)

// decide is called before a wait. c is nil for the pump, which leaves it as it is.
func (k *keeping) decide(c *Conn) {
	if k.always || c == nil {
		return
	}
	if k.kept {
		if now := time.Now(); now.Sub(k.yielded) > lookEvery {
			k.yielded = now
			runtime.Gosched()
			if time.Since(now) > crowded || runtime.GOMAXPROCS(0) == 1 {
				k.own = 0
			}
		}
	}
	switch {
	case k.kept && k.own == 0:
		k.kept = false
	case !k.kept && k.own == ownBefore && runtime.GOMAXPROCS(0) > 1:
		k.kept = true
	default:
		return
	}
	k.keep(k.kept)
}

// learn is told what a wait has brought.
func (k *keeping) learn(c *Conn, all []ibv.WC) {
	if k.always || c == nil || len(all) == 0 {
		return
	}
	for i := range all {
		if protocol.KeyOf(all[i].WRID) != c.key {
			k.own = max(k.own-ownBefore/2, 0)
			return
		}
	}
	k.own = min(k.own+1, ownBefore)
}
