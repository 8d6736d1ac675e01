// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

#include "go_asm.h"
#include "textflag.h"

// See asm_amd64.s. C keeps R19 to R29; R28 is g, which C keeps too.

// func currentG() uintptr
TEXT ·currentG(SB), NOSPLIT, $0-8
	MOVD	g, ret+0(FP)
	RET

// ONSTACK calls R10 on the stack in R9. R19 and R20 keep SP and LR.
#define ONSTACK \
	MOVD	$1, R11 \
	MOVB	R11, const_gThrowsplit(g) \
	MOVD	R30, R20 \
	MOVD	RSP, R19 \
	MOVD	R9, RSP \
	BL	(R10) \
	MOVD	R19, RSP \
	MOVD	R20, R30 \
	MOVB	ZR, const_gThrowsplit(g)

// SYSTEM leaves in R9 the end of what Go uses of the thread's system stack.
#define SYSTEM \
	MOVD	const_gM(g), R9 \
	MOVD	const_mG0(R9), R9 \
	MOVD	const_gSchedSP(R9), R9 \
	AND	$~15, R9

// func CallDirect(f *Bound, b, c uintptr) (result int32)
TEXT ·CallDirect(SB), NOFRAME, $0-28
	MOVD	f+0(FP), R8
	MOVD	b+8(FP), R1
	MOVD	c+16(FP), R2
	LDP	Bound_Fn(R8), (R10, R0)
	SYSTEM
	ONSTACK
	MOVW	R0, result+24(FP)
	RET

// func asmcgocall3(fn, a, b, c uintptr) (result int32)
TEXT ·asmcgocall3(SB), NOSPLIT, $32-36
	MOVD	$thunk3<>(SB), R0
	MOVD	R0, 8(RSP)
	MOVD	$fn+0(FP), R0
	MOVD	R0, 16(RSP)
	BL	runtime·asmcgocall(SB)
	MOVW	24(RSP), R0
	MOVW	R0, result+32(FP)
	RET

// func systemStacks(seen *uintptr) (computed uintptr)
TEXT ·systemStacks(SB), NOSPLIT, $32-16
	MOVD	$thunkSP<>(SB), R0
	MOVD	R0, 8(RSP)
	MOVD	seen+0(FP), R0
	MOVD	R0, 16(RSP)
	BL	runtime·asmcgocall(SB)
	SYSTEM
	MOVD	R9, computed+8(FP)
	RET

TEXT thunkSP<>(SB), NOSPLIT|NOFRAME, $0
	MOVD	RSP, R1
	MOVD	R1, (R0)
	RET

// func thunks() (call3, callFrame, readByte uintptr)
TEXT ·thunks(SB), NOSPLIT, $0-24
	MOVD	$thunk3<>(SB), R0
	MOVD	R0, call3+0(FP)
	MOVD	$thunkFrame<>(SB), R0
	MOVD	R0, callFrame+8(FP)
	MOVD	$thunkByte<>(SB), R0
	MOVD	R0, readByte+16(FP)
	RET

// thunk3 calls fn(a, b, c), which lie in that order at R0.
TEXT thunk3<>(SB), NOSPLIT|NOFRAME, $0
	MOVD	0(R0), R9
	MOVD	16(R0), R1
	MOVD	24(R0), R2
	MOVD	8(R0), R0
	JMP	(R9)

// thunkFrame calls what a frame says and leaves result and errno in it.
TEXT thunkFrame<>(SB), NOSPLIT|NOFRAME, $0
	SUB	$48, RSP	// the ninth argument, the alignment, and what is kept
	STP	(R29, R30), 16(RSP)
	STP	(R19, R20), 32(RSP)
	ADD	$16, RSP, R29
	MOVD	R0, R19
	MOVD	ZR, R20
	MOVD	frame_errnoLocation(R19), R9
	CBZ	R9, call
	BL	(R9)
	MOVD	R0, R20
	MOVW	ZR, (R20)
call:
	LDP	frame_args(R19), (R0, R1)
	LDP	(frame_args+16)(R19), (R2, R3)
	LDP	(frame_args+32)(R19), (R4, R5)
	LDP	(frame_args+48)(R19), (R6, R7)
	MOVD	(frame_args+64)(R19), R9
	MOVD	R9, 0(RSP)
	MOVD	frame_fn(R19), R9
	BL	(R9)
	MOVD	R0, frame_result(R19)
	MOVD	ZR, R1
	CBZ	R20, done
	MOVWU	(R20), R1
done:
	MOVD	R1, frame_errno(R19)
	LDP	32(RSP), (R19, R20)
	LDP	16(RSP), (R29, R30)
	ADD	$48, RSP
	RET

// thunkByte returns the byte at R0.
TEXT thunkByte<>(SB), NOSPLIT|NOFRAME, $0
	MOVBU	(R0), R0
	RET
