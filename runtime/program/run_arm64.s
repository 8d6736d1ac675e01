// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

#include "go_asm.h"
#include "textflag.h"

// func address() uintptr
TEXT ·address(SB), NOSPLIT, $0-8
	MOVD	$thunk<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET

// thunk runs the steps of a program at R0, 64 bytes each, until it meets stepEnd.
TEXT thunk<>(SB), NOSPLIT|NOFRAME, $0
	SUB	$48, RSP
	STP	(R29, R30), 0(RSP)
	STP	(R19, R20), 16(RSP)
	MOVD	R21, 32(RSP)
	MOVD	RSP, R29
	MOVD	R0, R20	// first step
	MOVD	R0, R19	// current step
	MOVD	ZR, R21	// last result
next:
	MOVWU	step_op(R19), R9
	MOVD	step_address(R19), R10
	CMPW	$const_stepRequest, R9
	BEQ	stepRequest
	CMPW	$const_stepCall, R9
	BEQ	stepCall
	BLO	end
	CMPW	$const_stepStoreResult, R9
	BLO	stepStore
	BEQ	stepStoreResult
	CMPW	$const_stepJumpResult, R9
	BLO	stepCopy
	BEQ	stepJumpResult
	MOVWU	(R10), R11	// stepJumpMemory
	CBNZW	R11, jump
advance:
	ADD	$step__size, R19
	JMP	next
stepCall:
	LDP	step_args(R19), (R0, R1)
	LDP	(step_args+16)(R19), (R2, R3)
	LDP	(step_args+32)(R19), (R4, R5)
	BL	(R10)
	MOVD	R0, R21
	JMP	advance
stepRequest:
	LDP	step_args(R19), (R0, R1)
	LDP	(step_args+16)(R19), (R2, R3)
	LDP	(step_args+32)(R19), (R11, R12)
	MOVHU	step_target(R19), R13
	ADD	R0, R13, R13
	MOVD	R11, (R13)
	MOVW	R12, 8(R13)
	BL	(R10)
	MOVD	R0, R21
	JMP	advance
stepStore:
	MOVD	step_args(R19), R11
	JMP	store
stepStoreResult:
	MOVD	R21, R11
	JMP	store
stepCopy:
	MOVD	step_args(R19), R12
	MOVBU	step_width(R19), R13
	CMPW	$4, R13
	BEQ	load4
	BHI	load8
	CMPW	$2, R13
	BEQ	load2
	MOVBU	(R12), R11
	JMP	store
load2:
	MOVHU	(R12), R11
	JMP	store
load4:
	MOVWU	(R12), R11
	JMP	store
load8:
	MOVD	(R12), R11
store:
	MOVBU	step_width(R19), R13
	CMPW	$4, R13
	BEQ	store4
	BHI	store8
	CMPW	$2, R13
	BEQ	store2
	MOVB	R11, (R10)
	JMP	advance
store2:
	MOVH	R11, (R10)
	JMP	advance
store4:
	MOVW	R11, (R10)
	JMP	advance
store8:
	MOVD	R11, (R10)
	JMP	advance
stepJumpResult:
	CBZW	R21, advance
jump:
	MOVHU	step_target(R19), R11
	ADD	R11<<6, R20, R19
	JMP	next
end:
	MOVD	R21, R0
	MOVD	32(RSP), R21
	LDP	16(RSP), (R19, R20)
	LDP	0(RSP), (R29, R30)
	ADD	$48, RSP
	RET
