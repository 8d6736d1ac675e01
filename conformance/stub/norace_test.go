// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package stub

const defaultRounds = enoughRounds
