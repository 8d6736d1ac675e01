// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package cm

const underRaceDetector = false
