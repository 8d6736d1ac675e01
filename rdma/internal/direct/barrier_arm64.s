// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// Nothing keeps stores in order here. The device is an observer in the outer shareable domain (OSHST, OSHLD). A store
// to a register is kept in order with others by DSB, which waits until they are done.

#define DMB_OSHST	DMB	$0x2
#define DMB_OSHLD	DMB	$0x1
#define DSB_ST	DSB	$0xe

// func publish(record *uint32, value uint32)
TEXT ·publish(SB), NOSPLIT, $0-12
	MOVD	record+0(FP), R0
	MOVWU	value+8(FP), R1
	DMB_OSHST	// the requests before the record
	MOVW	R1, (R0)
	DSB_ST	// the record before the register
	RET

// func ring(record *uint32, value uint32, register, control unsafe.Pointer)
TEXT ·ring(SB), NOSPLIT, $0-32
	MOVD	record+0(FP), R0
	MOVWU	value+8(FP), R1
	MOVD	register+16(FP), R2
	MOVD	control+24(FP), R3
	MOVD	(R3), R3
	DMB_OSHST	// the requests before the record
	MOVW	R1, (R0)
	DSB_ST	// the record before the register
	MOVD	R3, (R2)	// one store: half a doorbell would be another one
	DSB_ST	// it leaves now, and before the next doorbell
	RET

// func flame(record *uint32, value uint32, register, request unsafe.Pointer)
TEXT ·flame(SB), NOSPLIT, $0-32
	MOVD	record+0(FP), R0
	MOVWU	value+8(FP), R1
	MOVD	register+16(FP), R2
	MOVD	request+24(FP), R3
	VLD1	(R3), [V0.B16, V1.B16, V2.B16, V3.B16]
	DMB_OSHST	// the requests before the record
	MOVW	R1, (R0)
	DSB_ST	// the record before the register
	VST1	[V0.B16, V1.B16, V2.B16, V3.B16], (R2)
	DSB_ST	// it leaves now, and before the next doorbell
	RET

// func copyBlock(to, from unsafe.Pointer)
TEXT ·copyBlock(SB), NOSPLIT, $0-16
	MOVD	to+0(FP), R0
	MOVD	from+8(FP), R1
	VLD1	(R1), [V0.B16, V1.B16, V2.B16, V3.B16]
	VST1	[V0.B16, V1.B16, V2.B16, V3.B16], (R0)
	RET

// func flush()
TEXT ·flush(SB), NOSPLIT, $0-0
	DSB_ST	// what was stored in the register leaves now
	RET

// func acquire()
TEXT ·acquire(SB), NOSPLIT, $0-0
	DMB_OSHLD	// the owner bit of a completion before its other fields
	RET
