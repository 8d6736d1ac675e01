// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package rpma

const underRaceDetector = false
