// SPDX-License-Identifier: BSD-2-Clause

package mapped

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	a, b := Add(0x10000, 0x1000), Add(0x11000, 0x1000)
	for _, c := range []struct {
		start, length uintptr
		of            *Memory
	}{
		{0x10000, 0x1000, a}, {0x10fff, 1, a}, {0x11000, 1, b}, {0x11fff, 1, b},
		{0xffff, 1, nil}, {0x10fff, 2, nil}, {0x12000, 1, nil}, {0x11fff, ^uintptr(0), nil}, {0x13000, 0x1000, nil},
	} {
		u := Find(c.start, c.length, nil)
		if c.of == nil {
			assert.Nil(t, u, "%#x", c.start)
		} else if assert.NotNil(t, u, "%#x", c.start) {
			assert.Same(t, c.of, u.of)
			u.End()
		}
	}
	require.NoError(t, a.Leave())
	assert.Nil(t, Find(0x10000, 1, nil))
	assert.NotNil(t, Find(0x11000, 1, func() error { return nil }))
	require.NoError(t, a.Leave())
	require.NoError(t, b.Leave())
	mu.Lock()
	defer mu.Unlock()
	assert.Empty(t, all)
}

func TestLeave(t *testing.T) {
	m := Add(0x10000, 0x1000)
	refusal := errors.New("in use")
	stopped := 0
	u := Find(0x10000, 1, func() error {
		stopped++
		assert.Nil(t, Find(0x10000, 1, nil), "no new users")
		return refusal
	})
	assert.ErrorIs(t, m.Leave(), refusal)
	assert.Equal(t, 1, stopped)
	Find(0x10000, 1, nil).End()
	u.End()
	require.NoError(t, m.Leave())
	assert.Equal(t, 1, stopped)
}
