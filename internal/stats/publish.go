// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"fmt"
	"os"
	"sync"

	"github.com/goverbs/goverbs/internal/rights"
)

// directory returns the value of the variable, or "".
var directory = sync.OnceValue(func() string { return rights.Getenv(Variable) })

// On reports whether the program publishes its counters.
func On() bool { return directory() != "" }

var sources struct {
	begin sync.Once
	mu    sync.Mutex // guards what follows
	// +checklocks:mu
	all []func(*Report)
}

// Add adds a source. One goroutine at a time calls it for each report. Add does nothing if publishing is off. An
// unusable directory is logged once, and is not fatal.
func Add(source func(*Report)) {
	if !On() {
		return
	}
	sources.mu.Lock()
	sources.all = append(sources.all, source)
	sources.mu.Unlock()
	sources.begin.Do(func() {
		if err := publish(directory()); err != nil {
			fmt.Fprintf(os.Stderr, "goverbs: %s: nothing is published: %v\n", Variable, err)
		}
	})
}

// read calls all sources.
func read() *Report {
	r := &Report{Format: Format, Devices: []Device{}}
	sources.mu.Lock()
	defer sources.mu.Unlock()
	for _, source := range sources.all {
		source(r)
	}
	return r
}
