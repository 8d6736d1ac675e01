// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// Stores to ordinary memory become visible in their order, so nothing stands in front of the record. Registers are
// mapped write-combining: stores there may be kept back, and overtake each other and those to memory, until SFENCE.

// func publish(record *uint32, value uint32)
TEXT ·publish(SB), NOSPLIT, $0-12
	MOVQ	record+0(FP), AX
	MOVL	value+8(FP), CX
	MOVL	CX, (AX)
	SFENCE	// the record before the register
	RET

// func ring(record *uint32, value uint32, register, control unsafe.Pointer)
TEXT ·ring(SB), NOSPLIT, $0-32
	MOVQ	record+0(FP), AX
	MOVL	value+8(FP), CX
	MOVQ	register+16(FP), DX
	MOVQ	control+24(FP), BX
	MOVQ	(BX), BX
	MOVL	CX, (AX)
	SFENCE	// the record before the register
	MOVQ	BX, (DX)	// one store: half a doorbell would be another one
	SFENCE	// it leaves now, and before the next doorbell
	RET

// func flame(record *uint32, value uint32, register, request unsafe.Pointer)
//
// The request is read in pieces that it was written in, a moment ago.
TEXT ·flame(SB), NOSPLIT, $0-32
	MOVQ	record+0(FP), AX
	MOVL	value+8(FP), CX
	MOVQ	register+16(FP), DX
	MOVQ	request+24(FP), BX
	MOVQ	(BX), SI
	MOVQ	8(BX), DI
	MOVQ	16(BX), R8
	MOVQ	24(BX), R9
	MOVQ	32(BX), R10
	MOVQ	40(BX), R11
	MOVQ	48(BX), R12
	MOVQ	56(BX), R13
	MOVL	CX, (AX)
	SFENCE	// the record before the register
	MOVQ	SI, (DX)
	MOVQ	DI, 8(DX)
	MOVQ	R8, 16(DX)
	MOVQ	R9, 24(DX)
	MOVQ	R10, 32(DX)
	MOVQ	R11, 40(DX)
	MOVQ	R12, 48(DX)
	MOVQ	R13, 56(DX)
	SFENCE	// it leaves now, and before the next doorbell
	RET

// func copyBlock(to, from unsafe.Pointer)
TEXT ·copyBlock(SB), NOSPLIT, $0-16
	MOVQ	to+0(FP), AX
	MOVQ	from+8(FP), BX
	MOVOU	(BX), X0
	MOVOU	16(BX), X1
	MOVOU	32(BX), X2
	MOVOU	48(BX), X3
	MOVOU	X0, (AX)
	MOVOU	X1, 16(AX)
	MOVOU	X2, 32(AX)
	MOVOU	X3, 48(AX)
	RET

// func flush()
TEXT ·flush(SB), NOSPLIT, $0-0
	SFENCE	// what was stored in the register leaves now
	RET

// func acquire()
TEXT ·acquire(SB), NOSPLIT, $0-0
	LFENCE	// the owner bit of a completion before its other fields
	RET
