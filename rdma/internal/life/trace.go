// SPDX-License-Identifier: BSD-2-Clause

package life

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/rdma/internal/made"
)

// Variable is the environment variable that has open objects noted, with where they were made.
const Variable = "GOVERBS_LEAKS"

// notes has the open objects. It is nil unless the variable is set.
var notes = func() *noted {
	if os.Getenv(Variable) == "" {
		return nil
	}
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

// WriteNotes writes the open objects in the order in which they were made, if they are noted.
func WriteNotes(w io.Writer) error {
	if notes == nil {
		return nil
	}
	notes.mu.Lock()
	of := maps.Clone(notes.of)
	notes.mu.Unlock()
	inOrder := func(a, b *Life) int { return cmp.Compare(a.number, b.number) }
	for _, l := range slices.SortedFunc(maps.Keys(of), inOrder) {
		if _, err := fmt.Fprintf(w, "not closed: %s, %s\n", l.name, of[l].Made()); err != nil {
			return err
		}
	}
	return nil
}
