// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package rdma

const underRaceDetector = true
