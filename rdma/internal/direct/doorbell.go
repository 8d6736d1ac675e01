// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// register is a doorbell register in a page of the device. Its two halves are used alternately. If it has a size, a
// half also accepts a complete request (BlueFlame), which the device then need not read from memory.
type register struct {
	at        unsafe.Pointer
	size      uint32 // bytes of a half; 0: only doorbells
	other     uint32 // offset of the half to use next: 0 or the size
	blueFlame blueFlame
	whole     [2]bool // write a single one-block request completely: not inline, inline

	users  map[*queuePair]bool // guarded by registerTable.mu
	shared atomic.Bool         // has or had several users: posts hold mu
	mu     sync.Mutex
}

// blueFlame selects which requests are written to the register completely, if posted alone.
type blueFlame uint8

const (
	blueFlameAlways blueFlame = iota
	blueFlameInline           // requests with inline data
	blueFlameNever
)

// blueFlameOf returns the mode that libmlx5's environment variables select.
func blueFlameOf(env func(string) (value string, set bool)) blueFlame {
	if never, set := env("MLX5_SHUT_UP_BF"); set && never != "0" {
		return blueFlameNever
	}
	if prefer, _ := env("MLX5_POST_SEND_PREFER_BF"); prefer == "0" {
		return blueFlameInline
	}
	return blueFlameAlways
}

// ring notifies the device of n new requests; control is the control segment of the last one. It writes the doorbell
// record, which the device reads after a missed doorbell, and then the register.
func (r *register) ring(q *sendQueue, control unsafe.Pointer, n uint32, p *posting) {
	record := uint32(be32(q.next & 0xffff))
	if r.shared.Load() {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	to := unsafe.Add(r.at, r.other)
	if bytes := p.units * unit; n == 1 && bytes > unit && bytes <= r.size && r.takes(p.inline) {
		if bytes <= block {
			flame(q.record, record, to, control)
			r.other ^= r.size
			return
		}
		publish(q.record, record)
		for ; ; bytes -= block {
			copyBlock(to, control)
			if bytes <= block {
				break
			}
			to, control = unsafe.Add(to, block), q.wrap(unsafe.Add(control, block))
		}
		flush()
	} else {
		ring(q.record, record, to, control)
	}
	r.other ^= r.size
}

// Beside limits a register that libmlx5 also uses to writes of 8 bytes: complete requests of the two sides would mix,
// because neither side knows which half the other one uses, or its lock.
func (d *Queues) Beside(c *ibv.QP) {
	if d.initObj == nil { // a queue pair of package native, which posts through the same register
		return
	}
	out := new(mlx5dv.QP)
	obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(c), Out: ibv.PtrTo(out)}}
	if err := d.initObj(obj, mlx5dv.OBJ_QP); err != nil {
		return // not a device of mlx5
	}
	registers.mu.Lock()
	defer registers.mu.Unlock()
	d.inC[out.BF.Reg] = true
	if r := registers.at[out.BF.Reg]; r != nil {
		r.share()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.blueFlame = blueFlameNever
	}
}

// share makes posts lock the register from now on. The caller holds registerTable.mu.
func (r *register) share() {
	r.shared.Store(true)
	for q := range r.users {
		q.send.exclude(func() {})
	}
}

// leave undoes use.
func (r *register) leave(q *queuePair) {
	registers.mu.Lock()
	defer registers.mu.Unlock()
	if delete(r.users, q); len(r.users) == 0 {
		delete(registers.at, uintptr(r.at))
	}
}

func (r *register) takes(inline bool) bool {
	return r.blueFlame == blueFlameAlways || r.blueFlame == blueFlameInline && inline
}
