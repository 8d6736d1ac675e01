// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// register is a doorbell register in a page of the device. It has two halves, which take turns; where it has a size, a
// half also takes a whole request (BlueFlame), so that the device need not read it from memory.
type register struct {
	at        unsafe.Pointer
	size      uint32 // bytes of a half; 0: doorbells alone
	other     uint32 // 0, or the distance of the half whose turn it is
	blueFlame blueFlame
	whole     [2]bool // a request of one block is written whole: if its data is elsewhere, and if it is inside

	users  map[*queuePair]bool // guarded by registerTable.mu
	shared atomic.Bool         // there are, or have been, several users: posts hold mu
	mu     sync.Mutex
}

// blueFlame says which requests are written to the register whole, if each is alone.
type blueFlame uint8

const (
	blueFlameAlways blueFlame = iota
	blueFlameInline           // those with their data inside
	blueFlameNever
)

// blueFlameOf is what libmlx5 reads of its environment.
func blueFlameOf(env func(string) (value string, set bool)) blueFlame {
	if never, set := env("MLX5_SHUT_UP_BF"); set && never != "0" {
		return blueFlameNever
	}
	if prefer, _ := env("MLX5_POST_SEND_PREFER_BF"); prefer == "0" {
		return blueFlameInline
	}
	return blueFlameAlways
}

// ring tells the device of n requests, the last of which has its control segment there: in the doorbell record, which
// the device reads again where it has missed a doorbell, and then in the register.
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

// Beside has a register that libmlx5 uses, too, take 8 bytes at once and no more: those of whole requests would mix,
// for nobody knows of the other one's turn or lock.
func (d *Queues) Beside(c *ibv.QP) {
	out := new(mlx5dv.QP)
	obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(c), Out: ibv.PtrTo(out)}}
	if err := libmlx5.InitObj(obj, mlx5dv.OBJ_QP); err != nil {
		return // it is not of mlx5
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

// share has posts take the register's lock from now on. The caller holds registerTable.mu.
func (r *register) share() {
	r.shared.Store(true)
	for q := range r.users {
		q.send.exclude(func() {})
	}
}

// leave ends what use began.
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
