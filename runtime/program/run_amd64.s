// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

#include "go_asm.h"
#include "textflag.h"

// func address() uintptr
TEXT ·address(SB), NOSPLIT, $0-8
	LEAQ	thunk<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// thunk runs the steps of a program at DI, 64 bytes each, until stepEnd. It is called like a C function, on a C stack.
// AX is the result of the last call.
TEXT thunk<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ	BX
	PUSHQ	R12
	PUSHQ	R13
	MOVQ	DI, R12	// first step
	MOVQ	DI, BX	// current step
	XORL	R13, R13	// last result
next:
	MOVL	step_op(BX), AX
	CMPL	AX, $const_stepRequest
	JEQ	stepRequest
	CMPL	AX, $const_stepCall
	JB	end
	JNE	other
stepCall:
	MOVQ	step_args(BX), DI
	MOVQ	(step_args+8)(BX), SI
	MOVQ	(step_args+16)(BX), DX
	MOVQ	(step_args+24)(BX), CX
	MOVQ	(step_args+32)(BX), R8
	MOVQ	(step_args+40)(BX), R9
	CALL	step_address(BX)
	MOVQ	AX, R13
	ADDQ	$step__size, BX
	CMPL	step_op(BX), $const_stepRequest
	JNE	next
stepRequest:
	MOVQ	step_args(BX), DI
	MOVWLZX	step_target(BX), DX
	MOVQ	(step_args+32)(BX), AX
	MOVL	(step_args+40)(BX), CX
	MOVQ	AX, (DI)(DX*1)
	MOVL	CX, 8(DI)(DX*1)
	MOVQ	(step_args+8)(BX), SI
	MOVQ	(step_args+16)(BX), DX
	MOVQ	(step_args+24)(BX), CX
	CALL	step_address(BX)
	MOVQ	AX, R13
	ADDQ	$step__size, BX
	CMPL	step_op(BX), $const_stepCall // the data of the request
	JEQ	stepCall
	JMP	next
other:
	MOVQ	step_address(BX), DX
	CMPL	AX, $const_stepStoreResult
	JB	stepStore
	JEQ	stepStoreResult
	CMPL	AX, $const_stepJumpResult
	JB	stepCopy
	JEQ	stepJumpResult
	CMPL	(DX), $0	// stepJumpMemory
	JNE	jump
advance:
	ADDQ	$step__size, BX
	JMP	next
stepStore:
	MOVQ	step_args(BX), AX
	JMP	store
stepStoreResult:
	MOVQ	R13, AX
	JMP	store
stepCopy:
	MOVQ	step_args(BX), SI
	MOVBLZX	step_width(BX), CX
	CMPL	CX, $4
	JEQ	load4
	JHI	load8
	CMPL	CX, $2
	JEQ	load2
	MOVBLZX	(SI), AX
	JMP	store
load2:
	MOVWLZX	(SI), AX
	JMP	store
load4:
	MOVL	(SI), AX
	JMP	store
load8:
	MOVQ	(SI), AX
store:
	MOVBLZX	step_width(BX), CX
	CMPL	CX, $4
	JEQ	store4
	JHI	store8
	CMPL	CX, $2
	JEQ	store2
	MOVB	AX, (DX)
	JMP	advance
store2:
	MOVW	AX, (DX)
	JMP	advance
store4:
	MOVL	AX, (DX)
	JMP	advance
store8:
	MOVQ	AX, (DX)
	JMP	advance
stepJumpResult:
	TESTL	R13, R13
	JZ	advance
jump:
	MOVWLZX	step_target(BX), AX
	SHLQ	$6, AX
	LEAQ	(R12)(AX*1), BX
	JMP	next
end:
	MOVQ	R13, AX
	POPQ	R13
	POPQ	R12
	POPQ	BX
	RET
