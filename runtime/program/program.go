// SPDX-License-Identifier: BSD-2-Clause

// Package program runs a list of C calls and stores as one call. Regions in which C holds a lock, from ibv_wr_start to
// ibv_wr_complete and from ibv_start_poll to ibv_end_poll, need it.
package program

import (
	"fmt"
	"math"
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
)

// Program is a list of slot calls and stores that runs as one call: one switch to the C stack, and no Go code in
// between. A region in which C holds a lock (ibv_wr_start to ibv_wr_complete, ibv_start_poll to ibv_end_poll) must be
// one program. If the goroutine were preempted inside it, another one could spin in C for that lock, and Go could never
// stop the world.
//
// Append the steps once and run the program often; Set methods change arguments in between. The addresses in a program
// do not keep Go memory alive. A Program is not safe for concurrent use.
type Program struct {
	steps    []step
	open     int  // jumps without a target
	software bool // a call goes to a Go function of a Space
	direct   runtime.Bound
}

// step is one step. The assembly depends on its layout and its size of 64 bytes.
type step struct {
	op      uint32
	width   uint8 // bytes of a store or copy
	_       uint8
	target  uint16 // step to jump to
	address uintptr
	args    [MaxArgs]uint64
}

const (
	stepEnd         = iota
	stepCall        // result = address(args...)
	stepStore       // *address = args[0]
	stepStoreResult // *address = result
	stepCopy        // *address = *args[0]
	stepJumpResult  // if the int result is not 0, continue at target
	stepJumpMemory  // if the uint32 at address is not 0, continue at target
	stepRequest     // *(args[0] + target) = args[4], 8 bytes; 4 bytes after it = args[5]; result = address(args[:4]...)
)

// Indices for [Program.SetArg] of a request.
const (
	RequestID = 4 + iota
	RequestFlags
	maxRequestArgs = 3
)

// MaxArgs is the largest number of arguments of a call in a program.
const MaxArgs = 6

// Step is the index of a step in its program.
type Step uint16

func (p *Program) add(s step) Step {
	if n := len(p.steps); n > 0 && p.steps[n-1].op == stepEnd {
		p.steps = p.steps[:n-1]
	}
	if len(p.steps) >= 1<<16-1 {
		panic(fmt.Sprintf("goverbs: a program has %d steps at most", 1<<16-1))
	}
	if s.op == stepJumpResult || s.op == stepJumpMemory {
		p.open++
	}
	p.steps = append(p.steps, s, step{})
	p.direct = runtime.Bound{Fn: thunkAddress(), Object: uintptr(unsafe.Pointer(&p.steps[0]))}
	return Step(len(p.steps) - 2)
}

// Len returns the number of steps, which is the index of the next step.
func (p *Program) Len() int { return max(len(p.steps)-1, 0) }

// Reset removes the steps and keeps their memory.
func (p *Program) Reset() { p.steps, p.open, p.software = p.steps[:0], 0, false }

// Call appends a call of the C function at fn.
func (p *Program) Call(fn uintptr, args ...uint64) Step {
	if len(args) > MaxArgs {
		panic(fmt.Sprintf("goverbs: a call of a program takes %d arguments at most, not %d", MaxArgs, len(args)))
	}
	s := step{op: stepCall, address: fn}
	copy(s.args[:], args)
	p.software = p.software || runtime.BackendOf(fn) != nil
	return p.add(s)
}

// Request appends the start of a work request as one step: stores of its wr_id and wr_flags, which are adjacent in an
// object from offset on, and a call of the C function at fn with the object and arguments. If a step has no room for
// the arguments, Request appends nothing and returns false.
func (p *Program) Request(fn, object, offset uintptr, id uint64, flags uint32, args ...uint64) (Step, bool) {
	if len(args) > maxRequestArgs || offset > math.MaxUint16 {
		return 0, false
	}
	s := step{op: stepRequest, target: uint16(offset), address: fn}
	s.args[0], s.args[RequestID], s.args[RequestFlags] = uint64(object), id, uint64(flags)
	copy(s.args[1:], args)
	p.software = p.software || runtime.BackendOf(fn) != nil
	return p.add(s), true
}

// Store appends a store of the low width bytes (1, 2, 4 or 8) of value.
func (p *Program) Store(address uintptr, width int, value uint64) Step {
	return p.add(step{op: stepStore, width: widthOf(width), address: address, args: [MaxArgs]uint64{value}})
}

// StoreResult appends a store of the low width bytes of the last call's result.
func (p *Program) StoreResult(address uintptr, width int) Step {
	return p.add(step{op: stepStoreResult, width: widthOf(width), address: address})
}

// Copy appends a copy of width bytes from one address to another.
func (p *Program) Copy(to, from uintptr, width int) Step {
	return p.add(step{op: stepCopy, width: widthOf(width), address: to, args: [MaxArgs]uint64{uint64(from)}})
}

// JumpIfResult appends a jump that is taken if the last call's result, as an int, is not 0. Call Target to set its
// target.
func (p *Program) JumpIfResult() Step { return p.add(step{op: stepJumpResult}) }

// JumpIfMemory appends a jump that is taken if the 32-bit number at address is not 0. Call Target to set its target.
func (p *Program) JumpIfMemory(address uintptr) Step {
	return p.add(step{op: stepJumpMemory, address: address})
}

// Target makes the next appended step the target of a jump. Jumps go forward only, so every program ends.
func (p *Program) Target(jump Step) {
	if s := &p.steps[jump]; s.op != stepJumpResult && s.op != stepJumpMemory {
		panic(fmt.Sprintf("goverbs: step %d of the program is not a jump", jump))
	}
	if p.steps[jump].target == 0 {
		p.open--
	}
	p.steps[jump].target = uint16(p.Len())
}

// SetArg changes argument i of a call, the value of a store (i = 0), or the address that a copy reads (i = 0).
func (p *Program) SetArg(s Step, i int, value uint64) { p.steps[s].args[i] = value }

// SetCall replaces a call by another one.
func (p *Program) SetCall(s Step, fn uintptr, args ...uint64) {
	if p.steps[s].op != stepCall || len(args) > MaxArgs {
		panic(fmt.Sprintf("goverbs: step %d of the program is not a call, or gets %d arguments", s, len(args)))
	}
	p.steps[s].address, p.steps[s].args = fn, [MaxArgs]uint64{}
	copy(p.steps[s].args[:], args)
}

// SetAddress changes the address of a store, a copy or a jump.
func (p *Program) SetAddress(s Step, address uintptr) {
	if p.steps[s].op == stepCall {
		panic(fmt.Sprintf("goverbs: step %d of the program is a call; use SetCall", s))
	}
	p.steps[s].address = address
}

// Run runs the program one way and returns the int result of its last call. It panics if a jump has no target.
func (p *Program) Run(w runtime.Way) int32 {
	first := p.first()
	if p.software {
		return interpret(first, software)
	}
	return run(w, first)
}

// RunDirect is Run with [runtime.CallDirect]. The program must be complete and not empty, and no step may call a
// software backend.
func (p *Program) RunDirect() int32 {
	result := runtime.CallDirect(&p.direct, 0, 0)
	goruntime.KeepAlive(p)
	return result
}

// software calls a function of a software backend.
func software(fn uintptr, args *[MaxArgs]uint64) uint64 {
	result, _ := runtime.CallSlot(fn, args)
	return result
}

var emptyProgram step

func (p *Program) first() *step {
	if p.open != 0 {
		panic("goverbs: a program has a jump without a target")
	}
	if len(p.steps) == 0 {
		return &emptyProgram
	}
	return &p.steps[0]
}

func widthOf(bytes int) uint8 {
	switch bytes {
	case 1, 2, 4, 8:
		return uint8(bytes)
	}
	panic(fmt.Sprintf("goverbs: a program stores 1, 2, 4 or 8 bytes, not %d", bytes))
}
