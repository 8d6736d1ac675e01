// SPDX-License-Identifier: BSD-2-Clause

package thread

import (
	goruntime "runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// allowed returns the processors that the thread may use.
func allowed(t *testing.T) (set unix.CPUSet) {
	assert.NoError(t, unix.SchedGetaffinity(0, &set))
	return set
}

func TestPin(t *testing.T) {
	for _, cpu := range []int{-1, 1 << 20, 1023} {
		_, err := Pin(cpu)
		assert.ErrorIs(t, err, syscall.EINVAL, "processor %d", cpu)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		before, cpu := allowed(t), 0
		for !before.IsSet(cpu) {
			cpu++
		}
		unpin, err := Pin(cpu)
		if !assert.NoError(t, err) {
			return
		}
		one := allowed(t)
		assert.True(t, one.IsSet(cpu))
		assert.Equal(t, 1, one.Count())
		unpin()
		goruntime.LockOSThread()
		assert.Equal(t, before, allowed(t))
	}()
	<-done
}
