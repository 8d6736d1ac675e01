// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"cmp"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
)

// completionQueue is a ring that the device writes completions to. Each completion has an owner bit that changes with
// each round of the ring, which distinguishes new completions from those of the previous round.
type completionQueue struct {
	refusing
	mu        lock.Lock
	held      *lock.Lock // replaces mu if not nil: callers of Poll hold it
	last      *queuePair // queue pair of the last completion
	first     unsafe.Pointer
	size      uintptr // size of a completion: 64 or 128 bytes; the fixed part is the last 64
	mask      uint32
	round     uint32 // index of the bit of consumed that equals the owner bit
	consumed  uint32 // number of consumed completions
	record    *record
	events    atomic.Uint32 // number of received events; part of the next request for an event
	bell      unsafe.Pointer
	number    uint32
	unknownQP uint32                // number of an unknown queue pair that a completion named, or 0
	pairs     map[uint32]*queuePair // by number
	// targets are receivers of XRC, by the index of their shared receive queue, and of raw packets, by their own
	targets map[uint32]*queuePair
	// unnumbered are targets of dynamic connections, which get their number in RTR
	unnumbered map[*queuePair]bool
	device     *Queues
	c          *ibv.CQ
}

// record is the doorbell record of a completion queue.
type record struct {
	consumed    atomic.Uint32
	lastRequest uint32 // the last request for an event
}

// Parts of completions that libmlx5's headers do not name.
const (
	cqe         = unsafe.Sizeof(mlx5dv.MLX5CQE64{})
	formats     = 3 << 2 // mask in the last byte: location of a small message
	compressed  = 3 << 2 // not a completion, but the common part of several others
	noQueuePair = 0      // number of a queue pair that does not exist
)

func newCompletionQueue(d *Queues, c *ibv.CQ, out *mlx5dv.CQ) *completionQueue {
	return &completionQueue{device: d, c: c, first: pointer(out.Buf), size: uintptr(out.CQESize), mask: out.CQECnt - 1,
		round: uint32(bits.TrailingZeros32(out.CQECnt)), record: (*record)(unsafe.Pointer(out.DBRec.Deref())),
		bell: unsafe.Add(pointer(out.CQUAR), mlx5dv.MLX5_CQ_DOORBELL), number: out.CQN, pairs: map[uint32]*queuePair{},
		targets: map[uint32]*queuePair{}, unnumbered: map[*queuePair]bool{}}
}

// Held sets the lock that callers of Poll, PollExtended and Misused hold. It is called before any of them.
func (q *completionQueue) Held(by *lock.Lock) { q.held = by }

// locked locks and returns the queue's lock.
func (q *completionQueue) locked() *lock.Lock {
	l := cmp.Or(q.held, &q.mu)
	l.Lock()
	return l
}

// add adds a queue pair whose completions arrive in q. q may be nil.
func (q *completionQueue) add(p *queuePair) {
	if q == nil {
		return
	}
	defer q.locked().Unlock()
	if p.isTarget() {
		q.unnumbered[p] = true
	} else {
		q.pairs[p.c.QPNum] = p
	}
	if s := p.send.packets; s != nil {
		q.targets[s.Index] = p
	}
	q.last = nil
}

// remove undoes add.
func (q *completionQueue) remove(p *queuePair) {
	if q == nil {
		return
	}
	defer q.locked().Unlock()
	if number := p.num(); q.pairs[number] == p {
		delete(q.pairs, number)
	}
	delete(q.unnumbered, p)
	if s := p.send.packets; s != nil {
		delete(q.targets, s.Index)
	}
	q.last = nil
}

// at returns the completion with a number, counted since the creation of the queue.
func (q *completionQueue) at(number uint32) *mlx5dv.MLX5CQE64 {
	return (*mlx5dv.MLX5CQE64)(unsafe.Add(q.first, uintptr(number&q.mask)*q.size+q.size-cqe))
}

// isWritten reports whether the device has written a completion. Its other fields may be read after acquire.
func (q *completionQueue) isWritten(number uint32) bool {
	const last = unsafe.Offsetof(mlx5dv.MLX5CQE64{}.OpOwn) &^ 3 // the word that contains OpOwn
	word := (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(q.at(number)), last)).Load()
	own := uint8(word >> 24)
	return own>>4 != mlx5dv.MLX5_CQE_INVALID && own&mlx5dv.MLX5_CQE_OWNER_MASK == uint8(number>>q.round&1)
}

// Poll reads up to len(wcs) completions.
func (q *completionQueue) Poll(_ *ibv.CQ, wcs []ibv.WC) int32 {
	if q.held != nil {
		return q.take(wcs, false)
	}
	return q.poll(wcs, false)
}

// PollExtended is Poll that sets all fields, as the functions of libmlx5's extended completion queues do.
func (q *completionQueue) PollExtended(_ *ibv.CQ, wcs []ibv.WC) int32 {
	if q.held != nil {
		return q.take(wcs, true)
	}
	return q.poll(wcs, true)
}

func (q *completionQueue) poll(wcs []ibv.WC, extended bool) int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.take(wcs, extended)
}

// take is poll. The caller holds the queue's lock.
func (q *completionQueue) take(wcs []ibv.WC, extended bool) int32 {
	n, begin := 0, q.consumed
	for n < len(wcs) {
		ready := q.consumed
		for end := ready + uint32(len(wcs)-n); ready != end && q.isWritten(ready); {
			ready++
		}
		if ready == q.consumed {
			break
		}
		acquire() // once for all completions
		for ; q.consumed != ready; q.consumed++ {
			e := q.at(q.consumed)
			switch q.read(e, &wcs[n]) {
			case read:
				if extended {
					extend(e, &wcs[n])
				}
				n++
			case broken:
				if n > 0 { // the next poll reports the error
					q.publishConsumed()
					return int32(n)
				}
				q.consumed++
				q.publishConsumed()
				return -1
			}
		}
	}
	if q.consumed != begin {
		q.publishConsumed()
	}
	return int32(n)
}

// publishConsumed publishes the number of consumed completions. The device may then overwrite them.
func (q *completionQueue) publishConsumed() {
	lock.StoreRelease32(&q.record.consumed, uint32(be32(q.consumed&0xffffff)))
}

// outcome is the result of reading a completion.
type outcome int

const (
	read    outcome = iota
	dropped         // the queue pair was closed or reset
	broken          // the completion is invalid
)

// pair returns the queue pair with a number, or nil.
func (q *completionQueue) pair(number uint32) *queuePair {
	if p := q.last; p != nil && p.send.number == number<<8 {
		return p
	}
	p := q.pairs[number]
	if p == nil {
		p = q.numbered(number)
	}
	if p != nil {
		q.last = p
	}
	return p
}

// numbered returns the target of dynamic connections that has got a number since the last call, or nil.
func (q *completionQueue) numbered(number uint32) *queuePair {
	for p := range q.unnumbered {
		if p.num() == number {
			delete(q.unnumbered, p)
			q.pairs[number] = p
			return p
		}
	}
	return nil
}

// pause waits for polls in progress. q may be nil.
func (q *completionQueue) pause() {
	if q != nil {
		defer q.locked().Unlock()
	}
}

// drop drops all completions of a queue pair in the ring. q may be nil.
func (q *completionQueue) drop(p *queuePair) {
	if q == nil {
		return
	}
	defer q.locked().Unlock()
	for number := q.consumed; number-q.consumed <= q.mask && q.isWritten(number); number++ {
		acquire()
		e := q.at(number)
		if !p.owns(e) {
			continue
		}
		q.releaseRecv(e, p)
		e.SOPDropQPN = noQueuePair
	}
}

// target adds a shared receive queue of XRC. Its completions name it, and a queue pair that has no completion queue.
func (q *completionQueue) target(s *sharedQueue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.targets[s.index] = &queuePair{device: q.device, srq: s}
}

// forget undoes target and drops the queue's completions. q may be nil.
func (q *completionQueue) forget(s *sharedQueue) {
	if q == nil {
		return
	}
	q.mu.Lock()
	p := q.targets[s.index]
	delete(q.targets, s.index)
	q.mu.Unlock()
	q.drop(p)
}

// owns reports whether a completion belongs to the queue pair.
func (p *queuePair) owns(e *mlx5dv.MLX5CQE64) bool {
	number := host32(e.SOPDropQPN) & 0xffffff
	if p.c != nil {
		return number == p.num() || p.send.packets != nil && isReceive(e.OpOwn>>4) &&
			host32(e.SRQNUIdx)&0xffffff == p.send.packets.Index
	}
	return number != noQueuePair && isReceive(e.OpOwn>>4) && host32(e.SRQNUIdx)&0xffffff == p.srq.index
}

// releaseRecv frees the receive of a dropped completion.
func (q *completionQueue) releaseRecv(e *mlx5dv.MLX5CQE64, p *queuePair) {
	if isReceive(e.OpOwn>>4) && p.srq != nil {
		p.srq.free(host16(e.WQECounter))
	}
}

// Arm requests an event. The number of received events tells the device a new request from one already answered.
func (q *completionQueue) Arm(_ *ibv.CQ, solicitedOnly bool) int32 {
	defer q.locked().Unlock()
	if q.misused() != "" {
		return ebusy
	}
	what := uint32(mlx5dv.MLX5_CQ_DB_REQ_NOT)
	if solicitedOnly {
		what = mlx5dv.MLX5_CQ_DB_REQ_NOT_SOL
	}
	lastRequest := q.events.Load()&3<<28 | what | q.consumed&0xffffff
	doorbell := [2]ibv.BE32{be32(lastRequest), be32(q.number)}
	ring(&q.record.lastRequest, uint32(be32(lastRequest)), q.bell, unsafe.Pointer(&doorbell))
	return 0
}

// Event counts an event.
func (q *completionQueue) Event() { q.events.Add(1) }

// Resize replaces the ring. Completions keep their size. exchange makes the device write to the new ring. Completions
// that were not polled are moved there. In the old ring, they precede a completion that marks the end of the ring and
// counts as consumed.
func (q *completionQueue) Resize(out *mlx5dv.CQ, exchange func() error) error {
	defer q.locked().Unlock()
	if err := exchange(); err != nil {
		return err
	}
	old := completionQueue{first: q.first, size: q.size, mask: q.mask, round: q.round}
	q.first, q.mask, q.round = pointer(out.Buf), out.CQECnt-1, uint32(bits.TrailingZeros32(out.CQECnt))
	for number := q.consumed; number-q.consumed <= old.mask && old.isWritten(number); number++ {
		acquire()
		from, to := old.at(number), q.at(number+1)
		if from.OpOwn>>4 == mlx5dv.MLX5_CQE_RESIZE_CQ {
			break
		}
		copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(to), cqe-q.size)), q.size),
			unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(from), cqe-q.size)), q.size))
		to.OpOwn = to.OpOwn&^mlx5dv.MLX5_CQE_OWNER_MASK | uint8((number+1)>>q.round&1)
	}
	q.consumed++
	q.publishConsumed()
	return nil
}

// End destroys the queue.
func (q *completionQueue) End(destroy func() error) error {
	err := destroy()
	if err == nil {
		forget(&q.device.mu, q.device.cqs, q.c, q)
	}
	return err
}
