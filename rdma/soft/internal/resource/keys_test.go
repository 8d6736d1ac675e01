// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKeysStayApart: as many regions and windows as a device has, have places of their own in its keys.
func TestKeysStayApart(t *testing.T) {
	var k Keys
	live := map[uint32]*Memory{}
	for range 1 << 10 {
		m := &Memory{}
		k.Add(m)
		assert.NotContains(t, live, m.Key)
		live[m.Key] = m
	}
	for round := range 1 << 10 { // over and over
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
	assert.Len(t, k.entries, 1<<11, "the table does not grow by what is gone")
}

// TestKeysOfWires: strangers cannot guess the keys of a device with a wire. Keys of deregistered regions are invalid,
// and every other key finds its memory.
func TestKeysOfWires(t *testing.T) {
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
	require.Greater(t, len(first), 14, "keys begin at the same place")
}

// TestKeysDoNotTellOthers: known keys of a device with a wire do not help to guess the next one, as far as counting
// shows: their bits are evenly distributed, also in the differences between successive keys, and these differences are
// equal no more often than by chance.
func TestKeysDoNotTellOthers(t *testing.T) {
	const n = 1 << 14
	var k Keys
	k.Hide()
	all := make([]uint32, n)
	for i := range all {
		m := new(Memory)
		k.Add(m)
		all[i] = m.Key
		if i%2 == 1 { // and removed keys reveal no more
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
		// 7 times the standard deviation of evenly drawn bits, and of pairs, of which there are 8 to be expected
		for bit, got := range ones {
			assert.InDelta(t, drawn/2, got, 7*64, "%s, bit %d", name, bit)
		}
		assert.Less(t, drawn-len(places), 8+7*3, name)
	}
}
