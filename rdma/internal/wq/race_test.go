// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package wq

const underRaceDetector = true
