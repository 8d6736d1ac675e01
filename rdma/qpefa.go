// SPDX-License-Identifier: BSD-2-Clause

package rdma

import "github.com/goverbs/goverbs/generated/ibv"

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
