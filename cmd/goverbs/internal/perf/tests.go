// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"
)

// stream posts messages to all queue pairs as fast as they complete.
func (t *test) stream(size int) (*Row, error) {
	last, deadline := t.last(), t.deadline()
	m, done := begin(), 0
	for open := len(t.ends); open > 0; {
		if err := t.postAll(last); err != nil {
			return nil, err
		}
		n, err := t.next(t.sends, deadline)
		if ended(err) || err == nil && t.over(deadline) {
			break
		}
		if err != nil {
			return nil, err
		}
		open -= t.sent(n, last)
		done += n * t.o.Moderate
		t.progress.count(done)
	}
	done = 0
	for _, e := range t.ends {
		done += e.done
	}
	return m.bandwidth(size, done), nil
}

// last is the number of messages that a queue pair sends.
func (t *test) last() int {
	if t.o.Duration != 0 {
		return math.MaxInt
	}
	return t.o.Iterations
}

func (t *test) over(deadline time.Time) bool { return !deadline.IsZero() && time.Now().After(deadline) }

// postAll fills the send queues.
func (t *test) postAll(last int) error {
	o := t.o
	for _, e := range t.ends {
		for e.posted < last && e.posted+o.List-e.done <= o.TxDepth {
			if err := t.post(e, last); err != nil {
				return err
			}
		}
	}
	return nil
}

// sent counts n send completions and returns the number of queue pairs that are done.
func (t *test) sent(n, last int) (through int) {
	for _, wc := range t.wcs[:n] {
		e := t.ends[wc.WRID]
		if e.done = min(e.done+t.o.Moderate, e.posted); e.done == last {
			through++
		}
	}
	return through
}

// received counts n receive completions and posts new receives.
func (t *test) received(n int) error {
	if err := t.countReceives(n); err != nil {
		return err
	}
	return t.postReceives(t.have)
}

// countReceives counts n receive completions.
func (t *test) countReceives(n int) error {
	for _, wc := range t.wcs[:n] {
		t.have[wc.WRID]--
		if wc.ByteLen != t.bytes {
			return fmt.Errorf("%w: message size %d, want %d", errOther, wc.ByteLen, t.bytes)
		}
	}
	return nil
}

// quietTime bounds the wait for messages sent before the client's end, which may be lost.
const quietTime = 200 * time.Millisecond

// receiveAll receives until all messages have arrived or the client reports its end.
func (t *test) receiveAll(size int) (*Row, error) {
	o := t.o
	through := make(chan error, 1)
	go func() {
		b := make([]byte, t.l.keys().size(t.ends[0].keys.global))
		through <- t.l.receive(b)
	}()
	total := o.Iterations * o.QPs
	var m *meter
	var failure error
	done, heard, last := 0, false, time.Now()
	for o.Duration != 0 || done < total {
		n, err := t.next(t.recvs, time.Now().Add(quietTime/4))
		if errors.Is(err, context.Canceled) && m != nil {
			return m.bandwidth(size, done), nil
		}
		if err != nil && !errors.Is(err, errEnded) {
			return nil, err
		}
		if n > 0 && m == nil {
			m = begin()
		}
		done += n
		t.progress.count(done)
		if err := t.received(n); err != nil {
			return nil, err
		}
		if n > 0 {
			last = time.Now()
			continue
		}
		if heard {
			break
		}
		select {
		case failure = <-through:
			heard = true
		default:
			if time.Since(last) > t.timeout {
				return nil, errSilentPeer
			}
		}
	}
	if m == nil {
		m = begin()
	}
	row := m.bandwidth(size, done)
	if !heard {
		_ = t.withTimeout(t.timeout, func() error { failure = <-through; return nil })
	}
	if failure != nil {
		return nil, failure
	}
	more, err := t.look(t.recvs)
	if err != nil {
		return nil, err
	}
	if done += more; o.Duration == 0 && (done > total || done < total && o.Connection == "RC") {
		return nil, fmt.Errorf("%w: %d messages, want %d", errOther, done, total)
	}
	t.finished = !o.All // with all sizes, it reports its end again after the last
	return row, t.l.send(t.l.keys().put(&t.ends[0].keys))
}

// waitMessage waits for a message. It posts further receives while the peer processes this one, unless none is left.
func (t *test) waitMessage(deadline time.Time) error {
	n, err := t.next(t.recvs, deadline)
	if err != nil {
		return err
	}
	if err := t.countReceives(n); err != nil || t.o.RxDepth > 1 {
		return err
	}
	return t.postReceives(t.have)
}

// written returns a function that polls memory until the peer has written the next message, whose last byte changes.
func (t *test) written(size int) func(deadline time.Time) error {
	at := t.target(0) + size - 1
	b := t.buffer.Bytes()
	word := (*uint32)(unsafe.Pointer(&b[at&^3])) // buffers are page-aligned
	shift := at & 3 * 8
	if bigEndian {
		shift = 24 - shift
	}
	var next byte
	return func(until time.Time) error {
		next++
		var since time.Time
		for empty := 0; byte(atomic.LoadUint32(word)>>shift) != next; empty++ {
			if empty&511 != 511 { // the rest takes as long as hundreds of polls
				continue
			}
			// A software device may progress only when polled.
			if n, err := t.sends.Poll(t.wcs); err != nil || n != 0 {
				return errors.Join(err, errUnexpected)
			}
			if empty&4095 != 4095 {
				continue
			}
			if err := t.pause(until, &since); err != nil {
				return err
			}
		}
		return nil
	}
}

var errUnexpected = errors.New("unexpected completion")

// bigEndian reports the byte order of this machine.
var bigEndian = func() bool { one := uint16(1); return *(*byte)(unsafe.Pointer(&one)) == 0 }()

// pingPong alternates sending and receiving a message. For send, the client begins; for write, the server.
func (t *test) pingPong(size int, wait func(deadline time.Time) error) (*Row, error) {
	o, e := t.o, t.ends[0]
	until, first := t.deadline(), o.client() == (o.Verb == "send")
	mark := &t.buffer.Bytes()[t.source(0)+size-1]
	m := begin()
	for sent, received := 0, 0; o.Duration != 0 || sent < o.Iterations || received < o.Iterations; {
		if (sent > 0 || !first) && (o.Duration != 0 || received < o.Iterations) {
			if err := wait(until); ended(err) {
				break
			} else if err != nil {
				return nil, err
			}
			received++
		}
		if o.Duration == 0 && sent == o.Iterations {
			continue
		}
		m.mark()
		t.progress.count(sent)
		sent++
		*mark = byte(sent)
		if err := t.post(e, sent); err != nil {
			return nil, err
		}
		if o.Verb == "send" {
			if err := t.postReceives(t.have); err != nil {
				return nil, err
			}
		}
		if _, err := t.next(t.sends, until); ended(err) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return m.latency(size, 2), nil
}

// roundTrips runs one operation at a time.
func (t *test) roundTrips(size int) (*Row, error) {
	o, e := t.o, t.ends[0]
	deadline := t.deadline()
	m := begin()
	for n := 0; o.Duration != 0 || n < o.Iterations; n++ {
		m.mark()
		t.progress.count(n)
		if err := t.post(e, n+1); err != nil {
			return nil, err
		}
		if _, err := t.next(t.sends, deadline); ended(err) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	m.mark()
	return m.latency(size, 1), nil
}
