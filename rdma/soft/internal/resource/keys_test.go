// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKeysAreUnique: keys of up to the maximum number of regions and windows have distinct indexes.
func TestKeysAreUnique(t *testing.T) {
	var k Keys
	live := map[uint32]*Memory{}
	for range 1 << 10 {
		m := &Memory{}
		k.Add(m)
		assert.NotContains(t, live, m.Key)
		live[m.Key] = m
	}
	for round := range 1 << 10 { // repeatedly
		for key, m := range live {
			k.Remove(m)
			delete(live, key)
			break
		}
		m := &Memory{}
		k.Add(m)
		require.NotContains(t, live, m.Key, "%d", round)
		live[m.Key] = m
	}
	assert.Len(t, k.entries, 1<<11, "removed keys do not grow the table")
}

// TestUnpredictableKeys: the first key of a device with a wire is random. Keys of deregistered regions are invalid, and
// every other key finds its memory.
func TestUnpredictableKeys(t *testing.T) {
	first := map[uint32]bool{}
	for range 16 {
		var k Keys
		k.Hide()
		var all []*Memory
		for i := range 1000 {
			m := new(Memory)
			k.Add(m)
			require.NotZero(t, m.Key)
			if i == 0 {
				first[m.Key] = true
			}
			all = append(all, m)
			if i%3 == 0 {
				old := all[i/2]
				if k.Get(old.Key) == old {
					k.Remove(old)
					require.Nil(t, k.Get(old.Key))
					k.Add(old)
				}
			}
		}
		for _, m := range all {
			require.Same(t, m, k.Get(m.Key))
		}
	}
	require.Greater(t, len(first), 14, "two devices have the same first key")
}

// TestKeyStatistics: the keys of a device with a wire look random: the bits of keys and of the differences between
// successive keys are evenly distributed, and differences repeat no more often than by chance.
func TestKeyStatistics(t *testing.T) {
	const n = 1 << 14
	var k Keys
	k.Hide()
	all := make([]uint32, n)
	for i := range all {
		m := new(Memory)
		k.Add(m)
		all[i] = m.Key
		if i%2 == 1 { // also after keys were removed
			k.Remove(m)
		}
	}
	for name, of := range map[string]func(i int) uint32{
		"key":              func(i int) uint32 { return all[i] },
		"difference":       func(i int) uint32 { return all[i] - all[i-1] },
		"exclusive or":     func(i int) uint32 { return all[i] ^ all[i-1] },
		"second":           func(i int) uint32 { return all[i] - 2*all[i-1] + all[max(i-2, 0)] },
		"inverse product":  func(i int) uint32 { return all[i] * (all[i-1] | 1) },
		"difference of 64": func(i int) uint32 { return all[i] - all[max(i-64, 0)] },
	} {
		var ones [32]int
		places := map[uint32]int{}
		for i := 64; i < n; i++ {
			v := of(i)
			places[v>>8]++
			for bit := range ones {
				ones[bit] += int(v >> bit & 1)
			}
		}
		drawn := n - 64
		// 7 standard deviations of evenly drawn bits, and of the number of equal pairs, whose mean is 8
		for bit, got := range ones {
			assert.InDelta(t, drawn/2, got, 7*64, "%s, bit %d", name, bit)
		}
		assert.Less(t, drawn-len(places), 8+7*3, name)
	}
}
