// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package stream

const underRaceDetector = false
