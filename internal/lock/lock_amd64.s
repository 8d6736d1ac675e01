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
TEXT ·take(SB), NOSPLIT, $0-8
	MOVQ	TLS, CX
	MOVQ	0(CX)(TLS*1), DX
	MOVQ	l+0(FP), AX
	MOVQ	Lock_owner(AX), BX
	MOVQ	BX, CX
	ANDQ	$const_termMask, CX
	ORQ	CX, DX
	CMPQ	DX, BX
	JNE	slow
	SHLQ	$2, CX
	ADDQ	$Lock_inside, CX
	MOVL	$1, (AX)(CX*1)
	CMPQ	BX, Lock_owner(AX)
	JNE	over
	MOVQ	CX, Lock_held(AX)
	RET
over:
	MOVL	$0, (AX)(CX*1)
slow:
	JMP	·lockSlow(SB)
