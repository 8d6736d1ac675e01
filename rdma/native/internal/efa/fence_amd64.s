// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// func flush()
TEXT ·flush(SB), NOSPLIT, $0-0
	SFENCE	// the send queue is mapped write-combining: nothing else orders stores there
	RET

// func acquire()
TEXT ·acquire(SB), NOSPLIT, $0-0
	LFENCE	// the phase of a completion before its other fields
	RET
