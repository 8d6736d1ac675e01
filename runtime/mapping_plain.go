// SPDX-License-Identifier: BSD-2-Clause

//go:build unix && !linux

package runtime

const mapNoReserve = 0
