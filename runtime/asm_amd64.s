// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

#include "go_asm.h"
#include "textflag.h"

// This file contains Go functions (ABI0) that switch to C, and thunks, which run on a C stack with a pointer to the
// arguments in DI, like a C function.
//
// A Go function moves SP with a plain register move: the assembler marks such a function, and tracebacks stop there. C
// preserves BX, BP and R12 to R15, which hold the values that are needed after a call.
//
// Functions that call C and keep the P are not NOSPLIT: a loop that calls them can be preempted in their prologue,
// whatever the compiler inlines. They have no frame, so that they can end with a jump to a Go function with the same
// arguments.
//
// While C runs on another stack with g unchanged, g.throwsplit is 1, see the constants in fastcall.go.

// func currentG() uintptr
TEXT ·currentG(SB), NOSPLIT, $0-8
	MOVQ	TLS, CX
	MOVQ	0(CX)(TLS*1), AX
	MOVQ	AX, ret+0(FP)
	RET

// g is in R14: the prologue of these functions leaves it there, as Go code does, and C preserves it.

// ONSTACK calls AX on the stack in CX.
#define ONSTACK \
	MOVB	$1, const_gThrowsplit(R14) \
	MOVQ	SP, BX \
	MOVQ	CX, SP \
	CALL	AX \
	MOVQ	BX, SP \
	MOVB	$0, const_gThrowsplit(R14)

// SYSTEM sets CX to the end of the part of the thread's system stack that Go uses.
#define SYSTEM \
	MOVQ	const_gM(R14), CX \
	MOVQ	const_mG0(CX), CX \
	MOVQ	const_gSchedSP(CX), CX \
	ANDQ	$~15, CX

// func CallDirect(f *Bound, b, c uintptr) (result int32)
TEXT ·CallDirect(SB), NOFRAME, $0-28
	MOVQ	f+0(FP), R8
	MOVQ	b+8(FP), SI
	MOVQ	c+16(FP), DX
	MOVQ	Bound_Fn(R8), AX
	MOVQ	Bound_Object(R8), DI
	SYSTEM
	ONSTACK
	MOVL	AX, result+24(FP)
	RET

// func asmcgocall3(fn, a, b, c uintptr) (result int32)
TEXT ·asmcgocall3(SB), NOSPLIT, $24-36
	LEAQ	thunk3<>(SB), AX
	MOVQ	AX, 0(SP)
	LEAQ	fn+0(FP), AX
	MOVQ	AX, 8(SP)
	CALL	runtime·asmcgocall(SB)
	MOVL	16(SP), AX
	MOVL	AX, result+32(FP)
	RET

// func systemStacks(seen *uintptr) (computed uintptr)
//
// It returns the end of the system stack according to SYSTEM, and stores the SP of a C function under Go's own switch.
TEXT ·systemStacks(SB), NOSPLIT, $24-16
	LEAQ	thunkSP<>(SB), AX
	MOVQ	AX, 0(SP)
	MOVQ	seen+0(FP), AX
	MOVQ	AX, 8(SP)
	CALL	runtime·asmcgocall(SB)
	MOVQ	TLS, CX
	MOVQ	0(CX)(TLS*1), R14
	SYSTEM
	MOVQ	CX, computed+8(FP)
	RET

TEXT thunkSP<>(SB), NOSPLIT|NOFRAME, $0
	MOVQ	SP, (DI)
	RET

// func thunks() (call3, callFrame, readByte uintptr)
TEXT ·thunks(SB), NOSPLIT, $0-24
	LEAQ	thunk3<>(SB), AX
	MOVQ	AX, call3+0(FP)
	LEAQ	thunkFrame<>(SB), AX
	MOVQ	AX, callFrame+8(FP)
	LEAQ	thunkByte<>(SB), AX
	MOVQ	AX, readByte+16(FP)
	RET

// thunk3 calls fn(a, b, c), which are in that order at DI.
TEXT thunk3<>(SB), NOSPLIT|NOFRAME, $0
	MOVQ	0(DI), AX
	MOVQ	16(DI), SI
	MOVQ	24(DI), DX
	MOVQ	8(DI), DI
	JMP	AX

// thunkFrame makes the call of a frame and stores result and errno in it.
TEXT thunkFrame<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ	BX
	PUSHQ	R12
	SUBQ	$24, SP	// three arguments on the stack; this also aligns the stack for a call
	MOVQ	DI, BX
	XORL	R12, R12
	MOVQ	frame_errnoLocation(BX), AX
	TESTQ	AX, AX
	JZ	call
	CALL	AX
	MOVQ	AX, R12
	MOVL	$0, (R12)
call:
	MOVQ	(frame_args+48)(BX), AX
	MOVQ	AX, 0(SP)
	MOVQ	(frame_args+56)(BX), AX
	MOVQ	AX, 8(SP)
	MOVQ	(frame_args+64)(BX), AX
	MOVQ	AX, 16(SP)
	MOVQ	frame_args(BX), DI
	MOVQ	(frame_args+8)(BX), SI
	MOVQ	(frame_args+16)(BX), DX
	MOVQ	(frame_args+24)(BX), CX
	MOVQ	(frame_args+32)(BX), R8
	MOVQ	(frame_args+40)(BX), R9
	MOVQ	frame_fn(BX), R10
	XORL	AX, AX	// no vector registers, for a variadic function
	CALL	R10
	MOVQ	AX, frame_result(BX)
	XORL	CX, CX
	TESTQ	R12, R12
	JZ	done
	MOVL	(R12), CX
done:
	MOVQ	CX, frame_errno(BX)
	ADDQ	$24, SP
	POPQ	R12
	POPQ	BX
	RET

// thunkByte returns the byte at DI.
TEXT thunkByte<>(SB), NOSPLIT|NOFRAME, $0
	MOVBLZX	(DI), AX
	RET
