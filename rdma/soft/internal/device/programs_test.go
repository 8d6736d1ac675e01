// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/packets"
)

// TestPrograms runs random programs on queue pairs of all types that share completion queues and receives: every
// completion is the next one of its queue that the reference has, nothing is missing, and memory is the reference's
// after each step. Messages that come twice change nothing.
func TestPrograms(t *testing.T) {
	for _, right := range []int{6, 20, 200} {
		t.Run(fmt.Sprintf("one in %d is wrong", right), func(t *testing.T) { programs(t, right, Options{}) })
	}
	t.Run("all comes twice", func(t *testing.T) { programs(t, 20, Options{Faults: Faults{Duplicate: 1}}) })
	t.Run("packets", func(t *testing.T) { programs(t, 20, Options{losses: &packets.Losses{}}) })
	for _, percent := range []int{1, 10} {
		t.Run(fmt.Sprintf("packets of which %d %% are lost", percent), func(t *testing.T) {
			losses := packets.Evenly(1, float64(percent)/100)
			programs(t, 20, Options{losses: &losses})
		})
	}
}

func programs(t *testing.T, right int, o Options) {
	rapid.Check(t, func(rt *rapid.T) {
		own := &episode{TB: t}
		defer own.end()
		if o.losses != nil {
			o.losses.Seed = rapid.Uint64().Draw(rt, "seed")
		}
		p := newProgram(own, rt, right, o)
		touch := p.touch
		if o.losses != nil { // packets in flight carry the earlier contents
			touch = func() {
				p.settle()
				if !slices.ContainsFunc(p.world.qps, func(q *refQP) bool { return len(q.sends) > 0 }) {
					p.touch()
				}
			}
		}
		actions := map[string]func(*rapid.T){"": func(*rapid.T) { p.memory() }}
		for what, action := range map[string]struct {
			often int
			do    func()
		}{"post": {6, p.post}, "build": {3, p.build}, "receive": {6, p.receive}, "poll": {2, p.poll},
			"settle": {1, p.settle}, "touch": {1, touch}, "modify": {1, p.modify}, "destroy": {1, p.destroy}} {
			for i := range action.often {
				actions[fmt.Sprint(what, " ", i)] = func(*rapid.T) { action.do() }
			}
		}
		rt.Repeat(actions)
		p.settle()
		p.memory()
	})
}

// done is the list that a completion of a queue has to be the first one of.
func (p *program) done(wc *ibv.WC, sends bool) (*refQP, *[]refDone) {
	for _, q := range p.world.qps {
		if p.number(q) == wc.QPNum {
			if sends {
				return q, &q.sent
			}
			return q, &q.received
		}
	}
	p.rt.Fatalf("a completion of queue pair %#x, which there never was", wc.QPNum)
	return nil, nil
}

// take holds a completion against the reference.
func (p *program) take(wc ibv.WC, sends bool) {
	q, list := p.done(&wc, sends)
	what := fmt.Sprintf("%v of device %d: WR %d, sends %v", q.kind, q.device, wc.WRID, sends)
	require.NotEmpty(p.rt, *list, "%s: a completion with %v, and the reference has none", what, wc.Status)
	want := (*list)[0]
	*list = (*list)[1:]
	require.Equal(p.rt, want.id, wc.WRID, what)
	require.Equal(p.rt, want.status, wc.Status, what)
	if sends {
		q.retired = want.position + 1
	} else {
		want.queue.retired++
	}
	if want.status != ibv.WC_SUCCESS {
		return
	}
	require.Equal(p.rt, want.opcode, wc.Opcode, what)
	if !sends {
		require.EqualValues(p.rt, want.length, wc.ByteLen, what)
		require.Equal(p.rt, want.imm != 0, wc.WCFlags&ibv.WC_WITH_IMM != 0, what)
		if want.imm != 0 {
			require.Equal(p.rt, want.imm, wc.ImmData().Host(), what)
		}
		require.Equal(p.rt, want.ended != 0, wc.WCFlags&ibv.WC_WITH_INV != 0, what)
		if want.ended != 0 {
			require.Equal(p.rt, want.ended, *wc.InvalidatedRKey(), what)
		}
	}
}

// waiting is how many completions the reference has for a completion queue.
func (p *program) waiting(device int, sends bool) (n int) {
	for _, q := range p.world.qps {
		switch {
		case q.device != device:
		case sends:
			n += len(q.sent)
		default:
			n += len(q.received)
		}
	}
	return n
}

func (p *program) queue(device int, sends bool) *ibv.CQ {
	if sends {
		return p.send[device]
	}
	return p.recv[device]
}

// poll takes a few completions that have come, so that no time passes.
func (p *program) poll() {
	device, sends := p.draw("device", 0, 1), p.draw("sends", 0, 1) == 0
	if most := p.waiting(device, sends); most > 0 {
		for range p.draw("completions", 1, most) {
			p.take(p.rig.poll(p.queue(device, sends)), sends)
		}
	}
}

// settle runs until nothing more happens, and takes all completions and events.
func (p *program) settle() {
	p.world.wait()
	for range p.world.qps { // the end of one may be that of its peer, which then tries in vain
		p.fabric.Advance(2 * 4096 * time.Nanosecond << programTimeout) // retry_cnt 1, or 7 with packets
	}
	for vain := 0; vain < 40; vain++ {
		for device := range 2 {
			for _, sends := range []bool{true, false} {
				if wc, ok := p.polled(p.queue(device, sends)); ok {
					p.take(wc, sends)
					vain = 0
				}
			}
		}
	}
	for device := range 2 {
		require.Zero(p.rt, p.waiting(device, true), "sends of device %d that do not complete", device)
		require.Zero(p.rt, p.waiting(device, false), "receives of device %d that do not complete", device)
	}
}

// memory compares it, guards and all.
func (p *program) memory() {
	for d := range 2 {
		of := &p.world.devices[d]
		for i := range refGuard {
			before, after := p.areas[d][i], p.areas[d][refGuard+refSize+i]
			require.Equal(p.rt, [2]byte{byte(31*i + 7*d + len(p.areas[d])),
				byte(31*(refGuard+refSize+i) + 7*d + len(p.areas[d]))}, [2]byte{before, after},
				"memory that no key lets in")
		}
		for _, pair := range [][2][]byte{{of.main, p.areas[d][refGuard:][:refSize]}, {of.fixed, p.fixed[d].bytes},
			{of.foreign, p.foreign[d].bytes}} {
			if !bytes.Equal(pair[0], pair[1]) {
				for i := range pair[0] {
					require.Equal(p.rt, pair[0][i], pair[1][i], "device %d, byte %d", d, i)
				}
			}
		}
	}
}
