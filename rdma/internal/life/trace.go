// SPDX-License-Identifier: BSD-2-Clause

package life

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/goverbs/goverbs/rdma/internal/made"
)

// Variable is the environment variable that enables leak reports, which list open objects and where they were created.
const Variable = "GOVERBS_LEAKS"

// notes contains the open objects. It is nil unless the variable is set.
var notes = func() *noted {
	if os.Getenv(Variable) == "" {
		return nil
	}
	made.Want()
	return &noted{of: map[*Life]made.Place{}}
}()

type noted struct {
	mu sync.Mutex
	of map[*Life]made.Place
}

func (l *Life) note() {
	if notes == nil {
		return
	}
	notes.mu.Lock()
	defer notes.mu.Unlock()
	notes.of[l] = made.Here()
}

func (l *Life) forget() {
	if notes == nil {
		return
	}
	notes.mu.Lock()
	defer notes.mu.Unlock()
	delete(notes.of, l)
}

// WriteNotes writes the open objects: a line for each place that created some, in the order of their first objects.
func WriteNotes(w io.Writer) error {
	if notes == nil {
		return nil
	}
	notes.mu.Lock()
	of := maps.Clone(notes.of)
	notes.mu.Unlock()
	inOrder := func(a, b *Life) int { return cmp.Compare(a.number, b.number) }
	names := map[string][]string{} // by place
	var places []string
	for _, l := range slices.SortedFunc(maps.Keys(of), inOrder) {
		place := of[l].Made()
		if names[place] == nil {
			places = append(places, place)
		}
		names[place] = append(names[place], l.name)
	}
	for _, place := range places {
		if _, err := fmt.Fprintf(w, "not closed: %s, %s\n", strings.Join(names[place], ", "), place); err != nil {
			return err
		}
	}
	return nil
}
