// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// onEFA says whether libefa posts to the queue pair.
func (q *QP) onEFA() bool {
	return q.send != nil && q.send.Provider() == "efa" || q.recv != nil && q.recv.Provider() == "efa"
}

// changesAs is the type by whose rules the queue pair changes its state: one of EFA's reliable datagrams does as one of
// datagrams.
func (q *QP) changesAs() ibv.QPType {
	if q.kind == ibv.QPT_DRIVER && q.onEFA() {
		return ibv.QPT_UD
	}
	return q.kind
}

// uncounted says why what is outstanding cannot be waited for, or returns nil.
func (q *QP) uncounted() error {
	if !q.options.Unchecked || !q.onEFA() {
		return nil
	}
	return &VerbError{Verb: "Drain", Object: q.name, Errno: einval, Reason: "libefa takes no marker in ERR, and an " +
		"unchecked queue pair does not count its requests: create it without QueueOptions.Unchecked, or poll until " +
		"each request has completed"}
}

// flushCounted waits until each counted request has completed. It takes the place of markers, which libefa refuses in
// ERR; as each of its sends is signaled, none succeeds without a completion.
func (q *QP) flushCounted(p patience) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 10 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if err := q.collect(); err != nil {
			return err
		}
		if q.idle() {
			return nil
		}
		timer.Reset(pause)
		if _, err := p.wait(nil, timer.C); err != nil {
			return q.notDrained(err)
		}
		for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
			if cq == nil {
				continue
			}
			if err := cq.failure(); err != nil {
				return q.notDrained(err)
			}
		}
	}
}
