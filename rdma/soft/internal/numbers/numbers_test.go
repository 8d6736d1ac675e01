// SPDX-License-Identifier: BSD-2-Clause

package numbers

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTable: numbers find their objects up to the maximum number of objects. A freed number finds nothing, even if its
// index is reused.
func TestTable(t *testing.T) {
	for _, scattered := range []bool{false, true} {
		var n Table[int]
		if scattered {
			n.Scatter()
		}
		given := map[uint32]int{}
		for i := range Most {
			number, ok := n.Add(i+1, n.Low(), 200)
			require.True(t, ok)
			require.Less(t, number, uint32(1<<24))
			given[number] = i + 1
		}
		require.Len(t, given, Most, "numbers are unique")
		_, ok := n.Add(0, n.Low(), 200)
		assert.False(t, ok, "the table is full")
		for number, object := range given {
			require.Equal(t, object, n.Get(number))
		}
		for number := range given {
			n.Remove(number)
			require.Zero(t, n.Get(number))
			again, ok := n.Add(-1, n.Low(), 200)
			require.True(t, ok)
			require.NotEqual(t, number, again, "the old number does not find the new object")
			require.Zero(t, n.Get(number))
			require.Equal(t, -1, n.Get(again))
			break
		}
	}
}

// TestIndexReuse: an index is not reused while others are free.
func TestIndexReuse(t *testing.T) {
	var n Table[bool]
	last := map[uint32]int{}
	for i := range 10 * fewRest {
		number, ok := n.Add(true, 0, 200)
		require.True(t, ok)
		place := number & (1<<Bits - 1)
		if before, used := last[place]; used {
			require.Greater(t, i-before, fewRest)
		}
		last[place] = i
		n.Remove(number)
	}
}

// TestScatteredNumbers: known numbers predict neither the following number nor the next number of their index.
func TestScatteredNumbers(t *testing.T) {
	var n Table[bool]
	first, ok := n.Add(true, 0, 4)
	require.True(t, ok)
	n.Scatter()
	require.True(t, n.Get(first), "the number stays valid")
	const many = 1 << 14
	near, given := 0, map[uint32]int{}
	last := first
	for range many {
		number, ok := n.Add(true, n.Low(), 3)
		require.True(t, ok)
		if d := int32(number) - int32(last); -128 <= d && d <= 128 {
			near++
		}
		last = number
		given[number&(1<<Bits-1)]++
		n.Remove(number)
		require.False(t, n.Get(number))
	}
	require.True(t, n.Get(first))
	require.Less(t, near, many/50, "successive numbers are close to each other")
	require.Greater(t, len(given), many*3/4, "few distinct numbers")
}
