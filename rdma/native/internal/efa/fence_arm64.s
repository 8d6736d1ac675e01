// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

#define DMB_OSHLD	DMB	$0x1
#define DSB_ST	DSB	$0xe

// func ring(bell *uint32, value uint32)
TEXT ·ring(SB), NOSPLIT, $0-12
	MOVD	bell+0(FP), R0
	MOVWU	value+8(FP), R1
	DMB_OSHLD	// completions were read before their places are given back
	DSB_ST	// the requests before the doorbell
	MOVW	R1, (R0)
	DSB_ST	// the doorbell before the next requests
	RET

// func acquire()
TEXT ·acquire(SB), NOSPLIT, $0-0
	DMB_OSHLD	// the phase of a completion before its other fields
	RET
