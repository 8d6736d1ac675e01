// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux && !darwin && !windows

package udp

const identification = Unknown

func doNotFragment(uintptr, bool) {}
