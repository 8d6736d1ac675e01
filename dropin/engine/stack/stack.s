// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

#include "textflag.h"

// func Reserve()
// Its frame makes the prologue grow the stack.
TEXT ·Reserve(SB), 0, $262144-0
	RET
