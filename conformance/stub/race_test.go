// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package stub

// defaultRounds is small: the race detector looks at every byte that is copied.
const defaultRounds = 5
