// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || android || !(amd64 || arm64) || !go1.26 || go1.27 || goverbs_slow || race

package lock

const ownable = false

func take(l *Lock) { l.mu.Lock() }

func currentG() uintptr { return 0 }

// In this build, lockSlow and the functions that it calls are not used otherwise.
var _ = lockSlow

func register() {}

func barrier() bool { return false }
