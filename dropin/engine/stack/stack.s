// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

#include "textflag.h"

// func Reserve()
// The frame is what grows the stack, before the function begins.
TEXT ·Reserve(SB), 0, $262144-0
	RET
