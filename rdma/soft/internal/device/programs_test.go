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

// TestPrograms runs random programs on queue pairs of all types that share completion queues and receives. Completions
// and memory must equal the reference's after each step, and no completion may be missing. Duplicate messages have no
// effect.
func TestPrograms(t *testing.T) {
	for _, right := range []int{6, 20, 200} {
		t.Run(fmt.Sprintf("one in %d is invalid", right), func(t *testing.T) { programs(t, right, Options{}) })
	}
	t.Run("duplicates", func(t *testing.T) { programs(t, 20, Options{Faults: Faults{Duplicate: 1}}) })
	t.Run("packets", func(t *testing.T) { programs(t, 20, Options{losses: &packets.Losses{}}) })
	for _, percent := range []int{1, 10} {
		t.Run(fmt.Sprintf("packets, %d %% loss", percent), func(t *testing.T) {
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
		if o.losses != nil { // packets in flight contain the earlier data
			touch = func() {
				p.settle()
				if !slices.ContainsFunc(p.world.qps, func(q *refQP) bool { return len(q.sends) > 0 }) {
					p.touch()
				}
			}
		}
		actions := map[string]func(*rapid.T){"": func(*rapid.T) { p.memory() }}
		for name, action := range map[string]struct {
			often int
			do    func()
		}{"post": {6, p.post}, "build": {3, p.build}, "receive": {6, p.receive}, "poll": {2, p.poll},
			"settle": {1, p.settle}, "touch": {1, touch}, "modify": {1, p.modify}, "destroy": {1, p.destroy}} {
			for i := range action.often {
				actions[fmt.Sprint(name, " ", i)] = func(*rapid.T) { action.do() }
			}
		}
		rt.Repeat(actions)
		p.settle()
		p.memory()
	})
}

// done returns the list of expected completions that a completion must be the first of.
func (p *program) done(wc *ibv.WC, sends bool) (*refQP, *[]refDone) {
	for _, q := range p.world.qps {
		if p.number(q) == wc.QPNum {
			if sends {
				return q, &q.sent
			}
			return q, &q.received
		}
	}
	p.rt.Fatalf("completion of an unknown queue pair %#x", wc.QPNum)
	return nil, nil
}

// take compares a completion with the reference.
func (p *program) take(wc ibv.WC, sends bool) {
	q, list := p.done(&wc, sends)
	name := fmt.Sprintf("%v of device %d: WR %d, sends %v", q.kind, q.device, wc.WRID, sends)
	require.NotEmpty(p.rt, *list, "%s: completion with %v, reference has none", name, wc.Status)
	want := (*list)[0]
	*list = (*list)[1:]
	require.Equal(p.rt, want.id, wc.WRID, name)
	require.Equal(p.rt, want.status, wc.Status, name)
	if sends {
		q.retired = want.position + 1
	} else {
		want.queue.retired++
	}
	if want.status != ibv.WC_SUCCESS {
		return
	}
	require.Equal(p.rt, want.opcode, wc.Opcode, name)
	if !sends {
		require.EqualValues(p.rt, want.length, wc.ByteLen, name)
		require.Equal(p.rt, want.imm != 0, wc.WCFlags&ibv.WC_WITH_IMM != 0, name)
		if want.imm != 0 {
			require.Equal(p.rt, want.imm, wc.ImmData().Host(), name)
		}
		require.Equal(p.rt, want.ended != 0, wc.WCFlags&ibv.WC_WITH_INV != 0, name)
		if want.ended != 0 {
			require.Equal(p.rt, want.ended, *wc.InvalidatedRKey(), name)
		}
	}
}

// waiting returns the number of completions that the reference expects on a completion queue.
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

// poll polls some of the expected completions. It does not poll an empty queue, which would advance the clock.
func (p *program) poll() {
	device, sends := p.draw("device", 0, 1), p.draw("sends", 0, 1) == 0
	if most := p.waiting(device, sends); most > 0 {
		for range p.draw("completions", 1, most) {
			p.take(p.testbed.poll(p.queue(device, sends)), sends)
		}
	}
}

// settle advances the clock until no request is pending, and checks all completions and events.
func (p *program) settle() {
	p.world.wait()
	for range p.world.qps { // a failed queue pair may cause its peer to time out
		p.fabric.Advance(2 * 4096 * time.Nanosecond << programTimeout) // retry_cnt 1, or 7 with packets
	}
	for vain := 0; vain < 40; vain++ {
		for device := range 2 {
			for _, sends := range []bool{true, false} {
				if wc, ok := p.tryPoll(p.queue(device, sends)); ok {
					p.take(wc, sends)
					vain = 0
				}
			}
		}
	}
	for device := range 2 {
		require.Zero(p.rt, p.waiting(device, true), "device %d: sends without a completion", device)
		require.Zero(p.rt, p.waiting(device, false), "device %d: receives without a completion", device)
	}
}

// memory compares the memory with the reference's, including the guard bytes.
func (p *program) memory() {
	for d := range 2 {
		of := &p.world.devices[d]
		for i := range refGuard {
			before, after := p.areas[d][i], p.areas[d][refGuard+refSize+i]
			require.Equal(p.rt, [2]byte{byte(31*i + 7*d + len(p.areas[d])),
				byte(31*(refGuard+refSize+i) + 7*d + len(p.areas[d]))}, [2]byte{before, after},
				"memory outside the region was modified")
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
