// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/house/order"
)

var update = flag.Bool("update", false, "write what there is today: rows of rooms.txt, licences of files")

// limits hold for every room that has no row in rooms.txt.
var limits = map[string]int{"files": 40, "calls": 25, "arrows": 25}

// updateRooms is the command that lowers rows. It raises none: that is done by hand, and seen in the diff.
const updateRooms = "go test ./conformance/house -run 'TestRooms$' -update"

// measure is the key of a row.
type measure struct{ room, what string }

func (m measure) String() string { return m.room + "\t" + m.what }

// roomRows reads rooms.txt.
func roomRows(text string) (rows map[measure]int, err error) {
	rows = map[measure]int{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 3 || limits[cells[1]] == 0 {
			return nil, fmt.Errorf("rooms.txt:%d: not room, measure, number: %q", i+1, line)
		}
		m := measure{cells[0], cells[1]}
		if rows[m] != 0 {
			return nil, fmt.Errorf("rooms.txt:%d: %v for the second time", i+1, m)
		}
		if rows[m], err = strconv.Atoi(cells[2]); err != nil {
			return nil, fmt.Errorf("rooms.txt:%d: %w", i+1, err)
		}
	}
	return rows, nil
}

// compare compares what rooms have with the rows, which are exact, and returns the rows as -update writes them.
func compare(have, rows map[measure]int) (complaints []string, right map[measure]int) {
	right = map[measure]int{}
	for m, n := range have {
		row, listed := rows[m]
		limit := max(limits[m.what], row)
		switch {
		case n > limit:
			complaints = append(complaints, fmt.Sprintf("%v: %d, and %d is the most", m, n, limit))
			if listed {
				right[m] = row // -update only lowers rows
			}
		case listed && n <= limits[m.what]:
			complaints = append(complaints,
				fmt.Sprintf("%v: %d is within the limit of every room, so the row is stale: %s", m, n, updateRooms))
		case listed && n < row:
			complaints = append(complaints,
				fmt.Sprintf("%v: %d is better than the row, which has %d and is stale: %s", m, n, row, updateRooms))
			right[m] = n
		case listed:
			right[m] = n
		}
	}
	for m := range rows {
		if _, ok := have[m]; !ok {
			complaints = append(complaints, fmt.Sprintf("%v: no such room, so the row is stale: %s", m, updateRooms))
		}
	}
	slices.Sort(complaints)
	return complaints, right
}

// TestRooms checks that calls between the files of a package run one way, with few exceptions, and that a package has
// few files, so that a reader finds the right one.
func TestRooms(t *testing.T) {
	const file = "rooms.txt"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	rows, err := roomRows(string(text))
	require.NoError(t, err)
	rooms, err := order.Load("../..", "./...")
	require.NoError(t, err)
	assert.Greater(t, len(rooms), 40)
	have, shown := map[measure]int{}, map[measure][]order.Use{}
	for _, r := range rooms {
		name, ours := room(r.Path)
		if !ours || strings.HasPrefix(name, "generated/") { // a file for each kind of declaration, by a program
			continue
		}
		all, err := filepath.Glob(filepath.Join("../..", name, "*.go"))
		require.NoError(t, err)
		isTest := func(f string) bool { return strings.HasSuffix(f, "_test.go") }
		have[measure{name, "files"}] = len(slices.DeleteFunc(all, isTest))
		have[measure{name, "calls"}], shown[measure{name, "calls"}] = len(r.Calls.Back), r.Calls.Back
		have[measure{name, "arrows"}], shown[measure{name, "arrows"}] = len(r.Arrows.Back), r.Arrows.Back
	}
	complaints, right := compare(have, rows)
	if *update {
		lines := strings.SplitAfter(string(text), "\n")
		comment := slices.IndexFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "#") })
		var out strings.Builder
		out.WriteString(strings.Join(lines[:comment], ""))
		byName := func(a, b measure) int { return cmp.Compare(a.String(), b.String()) }
		for _, m := range slices.SortedFunc(maps.Keys(right), byName) {
			fmt.Fprintf(&out, "%v\t%d\n", m, right[m])
		}
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
		return
	}
	for _, c := range complaints {
		t.Error(c)
	}
	for m, uses := range shown {
		if row := max(limits[m.what], rows[m]); len(uses) > row {
			for _, u := range uses {
				t.Log(m.room, u)
			}
		}
	}
}

// TestRoomsFail checks that compare finds each kind of mistake, by one as well as by many.
func TestRoomsFail(t *testing.T) {
	calls := func(room string) measure { return measure{room, "calls"} }
	complaints, right := compare(
		map[measure]int{calls("fine"): 25, calls("listed"): 40, calls("new"): 26, calls("worse"): 51,
			calls("better"): 49, calls("good"): 25},
		map[measure]int{calls("listed"): 40, calls("worse"): 50, calls("better"): 50, calls("good"): 30,
			calls("gone"): 30})
	assert.Equal(t, []string{
		"better\tcalls: 49 is better than the row, which has 50 and is stale: " + updateRooms,
		"gone\tcalls: no such room, so the row is stale: " + updateRooms,
		"good\tcalls: 25 is within the limit of every room, so the row is stale: " + updateRooms,
		"new\tcalls: 26, and 25 is the most",
		"worse\tcalls: 51, and 50 is the most",
	}, complaints)
	assert.Equal(t, map[measure]int{calls("listed"): 40, calls("worse"): 50, calls("better"): 49}, right)
	for _, bad := range []string{
		"rdma\tcalls", "rdma\tdoors\t3", "rdma\tcalls\tmany", "rdma\tcalls\t30\nrdma\tcalls\t31",
	} {
		_, err := roomRows(bad)
		assert.Error(t, err, "%q", bad)
	}
}
