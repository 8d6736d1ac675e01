// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"time"
)

// both measures both directions at once. The row has the sum of both rates. For sends, perftest synchronizes in another
// order than for other operations.
func (t *test) both(size int) (*Row, error) {
	o := t.o
	if o.Verb == "send" { // already synchronized
		row, err := t.exchange(size)
		if t.ctx.Err() != nil {
			return row, err
		}
		if err == nil && o.Duration == 0 {
			err = t.withTimeout(t.peerTimeout(size), func() error {
				_, err := swapOutcomes(t.l, o.client(), row.outcome())
				return err
			})
		}
		if err == nil && o.All {
			err = t.sync()
		}
		return row, err
	}
	if err := t.sync(); err != nil {
		return nil, err
	}
	start := time.Now()
	row, err := t.stream(size)
	if err != nil || t.ctx.Err() != nil {
		return row, err
	}
	// The peer sends as many messages at its own rate.
	return row, t.withTimeout(o.Silence+10*time.Since(start), func() error {
		if o.All {
			if err := t.wait(t.l); err != nil {
				return err
			}
		}
		return row.withPeers(t.l, o.client())
	})
}

// withPeers exchanges results with the peer and adds the peer's.
func (r *Row) withPeers(l link, client bool) error {
	remote, err := swapOutcomes(l, client, r.outcome())
	if err != nil {
		return err
	}
	if !(remote.rate >= 0 && remote.rate < 1e12) { // rejects NaN, too
		return fmt.Errorf("invalid rate from the peer: %v million messages per second", remote.rate)
	}
	r.add(remote.rate * 1e6)
	return nil
}

// lossTimeout is the time after which missing messages of the other end count as lost.
const lossTimeout = 10 * time.Second

// exchange sends and receives. The server starts when the first message arrives.
func (t *test) exchange(size int) (*Row, error) {
	o := t.o
	last, total, deadline := t.last(), o.Iterations*o.QPs, t.deadline()
	m, started, arrived, through, heard := begin(), o.client(), 0, 0, time.Now()
	for o.Duration != 0 || through < len(t.ends) || arrived < total {
		if started {
			if err := t.postAll(last); err != nil {
				return nil, err
			}
		}
		in, err := t.look(t.recvs)
		if err != nil {
			return nil, err
		}
		if in > 0 && !started {
			m, started = begin(), true
		}
		arrived += in
		t.progress.count(arrived)
		if err := t.received(in); err != nil {
			return nil, err
		}
		out, err := t.look(t.sends)
		if err != nil {
			return nil, err
		}
		through += t.sent(out, last)
		if t.over(deadline) {
			break
		}
		if in+out > 0 {
			heard = time.Now()
			continue
		}
		if err := t.pause(time.Time{}, &time.Time{}); ended(err) {
			break
		} else if err != nil {
			return nil, err
		}
		if arrived == 0 && time.Since(heard) > t.peerTimeout(size) {
			return nil, errSilentPeer
		}
		if arrived > 0 && time.Since(heard) > lossTimeout {
			return nil, fmt.Errorf("received %d of %d messages, none for %v: %s drops messages without a receive; use "+
				"a deeper receive queue (-r) or a shorter send queue (-t)", arrived, total, lossTimeout,
				o.Connection)
		}
	}
	row := m.bandwidth(size, arrived)
	sent := 0
	for _, e := range t.ends {
		sent += e.done
	}
	row.add(row.Mps * 1e6 * float64(sent) / float64(max(arrived, 1)))
	return row, nil
}
