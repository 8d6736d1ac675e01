// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package stub

// defaultRounds is small: the race detector checks every copied byte.
const defaultRounds = 5
