// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && go1.26 && !go1.27 && !goverbs_slow && !race

#include "go_asm.h"
#include "textflag.h"

// func currentG() uintptr
TEXT ·currentG(SB), NOSPLIT, $0-8
	MOVD	g, ret+0(FP)
	RET

// func take(l *Lock)
TEXT ·take(SB), NOSPLIT|NOFRAME, $0-8
	MOVD	l+0(FP), R0
	MOVD	Lock_owner(R0), R1
	AND	$const_termMask, R1, R2
	ORR	g, R2, R3
	CMP	R1, R3
	BNE	slow
	LSL	$2, R2, R2
	ADD	$Lock_inside, R2, R2
	MOVD	$1, R5
	MOVW	R5, (R0)(R2)
	MOVD	Lock_owner(R0), R6
	CMP	R1, R6
	BNE	over
	MOVD	R2, Lock_held(R0)
	RET
over:
	MOVW	ZR, (R0)(R2)
slow:
	JMP	·lockSlow(SB)
