// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && go1.26 && !go1.27 && !goverbs_slow && !race

#include "go_asm.h"
#include "textflag.h"

// func currentG() uintptr
TEXT ·currentG(SB), NOSPLIT, $0-8
	MOVQ	TLS, CX
	MOVQ	0(CX)(TLS*1), AX
	MOVQ	AX, ret+0(FP)
	RET

// func take(l *Lock)
//
// g is in R14, where compiled Go code has it. An owner is g plus the number of the term, so the difference is that number
// for the owner, and a larger one for other goroutines.
TEXT ·take(SB), NOSPLIT, $0-8
	MOVQ	l+0(FP), AX
	MOVQ	Lock_owner(AX), BX
	MOVQ	BX, CX
	XORQ	R14, CX
	CMPQ	CX, $const_termMask
	JHI	slow
	LEAQ	Lock_inside(CX*4), CX
	MOVL	$1, (AX)(CX*1)
	CMPQ	BX, Lock_owner(AX)
	JNE	over
	MOVQ	CX, Lock_held(AX)
	RET
over:
	MOVL	$0, (AX)(CX*1)
slow:
	JMP	·lockSlow(SB)
