//go:build !linux || android || !(amd64 || arm64) || !go1.26 || go1.27 || goverbs_slow || race

package runtime

const ownable = false

func lock(l *Lock) { l.mu.Lock() }

// This build does not reach lockSlow and the functions that it calls.
var _ = lockSlow

func register() {}

func barrier() bool { return false }
