// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"
	"time"
)

// The cases.
const (
	caseCall  = "call"       // post_send of an existing list
	caseBuild = "build+post" // fill in every field of every work request and SGE, then post_send
	casePatch = "patch+post" // change wr_id and both addresses of an existing list, then post_send
	casePoll  = "poll"       // poll_cq, and read the completions in place
)

// cell is a combination of parameters, for which every implementation is measured.
type cell struct {
	stub       stubKind
	qps        int // queue pairs used in turn
	goroutines int // concurrent goroutines; threads in C
	name       string
	batch      int // work requests in a list, or completions in a poll
}

func (c cell) String() string {
	return fmt.Sprintf("%s of %d, %v stub, %d QPs, %d goroutines", c.name, c.batch, c.stub, c.qps, c.goroutines)
}

// label returns the cell's name in the style of Go benchmarks.
func (c cell) label(impl string) string {
	return fmt.Sprintf("%s/%s/%s/qps=%d/goroutines=%d/batch=%d", strings.ReplaceAll(c.name, "+", "-"), impl,
		strings.Fields(c.stub.String())[0], c.qps, c.goroutines, c.batch)
}

// plain reports whether the cell is in post.csv or poll.csv.
func (c cell) plain() bool { return c.stub == stubReturn && c.qps == 1 && c.goroutines == 1 }

// cells returns all cells: plain cells, cells with other stubs and numbers of queue pairs, and cells with several
// goroutines.
func cells() (all []cell) {
	add := func(kind stubKind, qps, goroutines int) {
		for _, name := range []string{caseCall, caseBuild, casePatch} {
			for _, batch := range []int{1, 4, 16, 64} {
				all = append(all, cell{kind, qps, goroutines, name, batch})
			}
		}
		if qps > 1 {
			return // polling does not depend on queue pairs
		}
		for _, batch := range []int{0, 1, 16} {
			all = append(all, cell{kind, qps, goroutines, casePoll, batch})
		}
	}
	for _, goroutines := range []int{1, 2, 4} {
		for _, kind := range []stubKind{stubReturn, stubWQE} {
			for _, qps := range []int{1, 64, 1024} {
				if goroutines == 1 || qps == 1 {
					add(kind, qps, goroutines)
				}
			}
		}
	}
	return all
}

// sampler runs the case of a cell n times on each of its goroutines, and returns the total time.
type sampler func(n int) (time.Duration, error)

// implementation is one way to run the cases.
type implementation struct {
	name    string
	prepare func(cell, *stub) (sampler, error)
}

const (
	implC       = "c"
	implDefault = "go-default"
	implChecked = "go-default-checked"
	implCgo     = "cgo"
	implPurego  = "purego"
)

// implementations lists the implementations in the order of output, with C, the baseline, first.
var implementations = []implementation{
	{name: implC, prepare: prepareC},
	{name: implDefault, prepare: prepareDefault},
	{name: implChecked, prepare: prepareChecked},
	{name: implCgo, prepare: goroutines(prepareCgo)},
	{name: implPurego, prepare: goroutines(preparePurego)},
}

// runner runs a case n times on one goroutine.
type runner func(n int) error

// goroutines gives each goroutine of a cell its own runner and runs them concurrently.
func goroutines(prepare func(cell, *stub) (runner, error)) func(cell, *stub) (sampler, error) {
	return func(c cell, s *stub) (sampler, error) {
		runners := make([]runner, c.goroutines)
		for i := range runners {
			r, err := prepare(c, s)
			if err != nil {
				return nil, err
			}
			runners[i] = r
		}
		return together(runners), nil
	}
}

// together measures from the first start to the last end, like the baseline in C.
func together(runners []runner) sampler {
	if len(runners) == 1 {
		return func(n int) (time.Duration, error) {
			start := time.Now()
			err := runners[0](n)
			return time.Since(start), err
		}
	}
	type span struct {
		start, end time.Time
		err        error
	}
	done := make(chan span, len(runners))
	return func(n int) (time.Duration, error) {
		for _, r := range runners {
			go func() {
				s := span{start: time.Now()}
				s.err = r(n)
				s.end = time.Now()
				done <- s
			}()
		}
		all := <-done
		for range len(runners) - 1 {
			s := <-done
			if s.start.Before(all.start) {
				all.start = s.start
			}
			if s.end.After(all.end) {
				all.end = s.end
			}
			if s.err != nil {
				all.err = s.err
			}
		}
		return all.end.Sub(all.start), all.err
	}
}
