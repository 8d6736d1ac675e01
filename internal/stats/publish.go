// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"fmt"
	"os"
	"sync"

	"github.com/goverbs/goverbs/internal/rights"
)

// directory returns the value of Variable, or "".
var directory = sync.OnceValue(func() string { return rights.Getenv(Variable) })

// On reports whether the program publishes its counters.
func On() bool { return directory() != "" }

var sources struct {
	begin sync.Once
	mu    sync.Mutex // guards the fields below
	// +checklocks:mu
	all []func(*Report)
}

// Add adds a source, which is called for each report, by one goroutine at a time. Add does nothing if publishing is
// off. If the directory is unusable, it prints one message.
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
