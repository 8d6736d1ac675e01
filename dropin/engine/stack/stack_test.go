// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package stack

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestReserve checks that goroutines that reserved space have separate stacks with that much space.
func TestReserve(t *testing.T) {
	const goroutines = 8
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse
	}
	before := inUse()
	reserved, done := make(chan bool), make(chan bool)
	for range goroutines {
		go func() {
			Reserve()
			reserved <- true
			<-done
		}()
	}
	for range goroutines {
		<-reserved
	}
	assert.GreaterOrEqual(t, inUse(), before+goroutines<<18)
	close(done)
}
