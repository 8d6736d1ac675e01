// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// func ring(bell *uint32, value uint32)
//
// The send queue is mapped write-combining: nothing else orders stores there.
TEXT ·ring(SB), NOSPLIT, $0-12
	MOVQ	bell+0(FP), AX
	MOVL	value+8(FP), CX
	SFENCE	// the requests before the doorbell
	MOVL	CX, (AX)
	SFENCE	// the doorbell before the next requests
	RET

// func acquire()
TEXT ·acquire(SB), NOSPLIT, $0-0
	LFENCE	// the phase of a completion before its other fields
	RET
