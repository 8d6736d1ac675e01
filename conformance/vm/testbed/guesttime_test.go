// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestGuestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx := GuestTime(t, 90*time.Second)
		<-ctx.Done()
		assert.Equal(t, 90*time.Second, time.Since(start))
		assert.EqualError(t, context.Cause(ctx), "context deadline exceeded: the guest has run for 1m30s")
	})
}

// TestRan checks that time in which the guest did not run is subtracted.
func TestRan(t *testing.T) {
	assert.Equal(t, 50*time.Millisecond, ran(50*time.Millisecond))
	assert.Equal(t, 80*time.Millisecond, ran(80*time.Millisecond), "the tick was a little late")
	assert.Equal(t, 100*time.Millisecond, ran(5*time.Second))
}
