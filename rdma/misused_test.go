// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// overwritten is a path whose queues C has used: every post, poll and arming fails.
type overwritten struct {
	quickPath
	sends []bool // arguments of Misused
}

func (p *overwritten) PostOne(*ibv.SendWR) bool     { return false }
func (p *overwritten) Poll(*ibv.CQ, []ibv.WC) int32 { return -1 }
func (p *overwritten) Arm(*ibv.CQ, bool) int32      { return int32(syscall.EBUSY) }
func (p *overwritten) Misused(sends bool) (name string) {
	p.sends = append(p.sends, sends)
	return "C was here"
}

// TestMisused: if a post, poll or event request fails because C has used the queue, the error reports this. It covers
// checked and unchecked queues, lists and programs.
func TestMisused(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(2, 1, 8), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			p := &overwritten{quickPath: quickPath{Path: &sameQP{&loopback{}, &d.qp}}}
			o.Path = p
			q := sendQueue(t, d, o)
			b, id, posted := sendBatch(t, 1, 1, 8), uint64(1), 0
			if o.Unchecked {
				id = refuse // rejected by the path
			} else {
				posted = 2
			}
			for range posted {
				_, err := q.Post(writes(b, id, 1))
				require.NoError(t, err)
			}
			_, err := q.Post(writes(b, id, 1))
			text := ": C was here: device or resource busy"
			assert.ErrorIs(t, err, syscall.EBUSY)
			assert.ErrorContains(t, err, text)
			assert.Equal(t, []bool{true}, p.sends)

			cq, err := NewCompletionQueue(&d.cq, o)
			require.NoError(t, err)
			_, err = cq.Poll(make([]ibv.WC, 1))
			assert.EqualError(t, err, "ibv_poll_cq: CQ 0"+text)
			err = cq.ReqNotify(false)
			assert.EqualError(t, verberr.Wrap("", "CQ 0", err), "ibv_req_notify_cq: CQ 0"+text)
			assert.Equal(t, []bool{true, false, false}, p.sends)
		})
	}
}

// excluded is a path that reports whether its caller holds the lock.
type excluded struct {
	quickPath
	mu lock.Lock
}

func (p *excluded) alone() bool {
	took := make(chan bool, 1)
	go func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		took <- true
	}()
	select {
	case <-took:
		return false
	case <-time.After(5 * time.Millisecond):
		return true
	}
}

func (p *excluded) PollExtended(*ibv.CQ, []ibv.WC) int32 {
	if p.alone() {
		return 0
	}
	return -1
}

func (p *excluded) Misused(bool) string { return fmt.Sprint(p.alone()) }

// TestLockedPath: a program that polls a queue directly holds the queue's lock.
func TestLockedPath(t *testing.T) {
	p := new(excluded)
	path := lockedPath{p, &p.mu}
	assert.Zero(t, path.PollExtended(nil, nil))
	assert.Equal(t, "true", misused(path, false))
	assert.Equal(t, "false", misused(p, false))
}
