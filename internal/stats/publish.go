// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"fmt"
	"os"
	"sync"

	"github.com/goverbs/goverbs/internal/rights"
)

// directory is that of the variable, or "".
var directory = sync.OnceValue(func() string { return rights.Getenv(Variable) })

// On says whether the program publishes what it counts.
func On() bool { return directory() != "" }

var sources struct {
	begin sync.Once
	mu    sync.Mutex // guards what follows
	// +checklocks:mu
	all []func(*Report)
}

// Add adds a source, which is asked for its part of each report by one goroutine at a time. It does nothing where
// nothing is published. A directory that cannot be used is said once: the program is not to fail of it.
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

// read asks all sources.
func read() *Report {
	r := &Report{Format: Format, Devices: []Device{}}
	sources.mu.Lock()
	defer sources.mu.Unlock()
	for _, source := range sources.all {
		source(r)
	}
	return r
}
