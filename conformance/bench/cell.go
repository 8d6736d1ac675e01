// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"
	"time"
)

// The cases.
const (
	caseCall  = "call"       // post_send of a list that is there, nothing else
	caseBuild = "build+post" // every field of every work request and SGE, then post_send
	casePatch = "patch+post" // wr_id and the two addresses of a list that is there, then post_send
	casePoll  = "poll"       // poll_cq, and reading what it found in place
)

// cell is one thing that every implementation is measured at.
type cell struct {
	stub       stubKind
	qps        int // taken in turn
	goroutines int // at once; threads in C
	name       string
	batch      int // work requests of a list, or completions that a poll finds
}

func (c cell) String() string {
	return fmt.Sprintf("%s of %d, %v stub, %d QPs, %d goroutines", c.name, c.batch, c.stub, c.qps, c.goroutines)
}

// label is the cell's name as Go's benchmarks have names.
func (c cell) label(impl string) string {
	return fmt.Sprintf("%s/%s/%s/qps=%d/goroutines=%d/batch=%d", strings.ReplaceAll(c.name, "+", "-"), impl,
		strings.Fields(c.stub.String())[0], c.qps, c.goroutines, c.batch)
}

// plain cells are those of post.csv and poll.csv.
func (c cell) plain() bool { return c.stub == stubReturn && c.qps == 1 && c.goroutines == 1 }

// cells are all of them: the plain ones first, then other stubs and numbers of queue pairs, then several goroutines.
func cells() (all []cell) {
	add := func(kind stubKind, qps, goroutines int) {
		for _, name := range []string{caseCall, caseBuild, casePatch} {
			for _, batch := range []int{1, 4, 16, 64} {
				all = append(all, cell{kind, qps, goroutines, name, batch})
			}
		}
		if qps > 1 {
			return // polling knows no queue pair
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

// sampler does a cell's case n times, by each of its goroutines, and says how long all of that took.
type sampler func(n int) (time.Duration, error)

// implementation is one way to do the cases.
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

// implementations are in the order in which they are printed. C comes first: the others are compared with it.
var implementations = []implementation{
	{name: implC, prepare: prepareC},
	{name: implDefault, prepare: prepareDefault},
	{name: implChecked, prepare: prepareChecked},
	{name: implCgo, prepare: goroutines(prepareCgo)},
	{name: implPurego, prepare: goroutines(preparePurego)},
}

// runner does a case n times on one goroutine.
type runner func(n int) error

// goroutines gives each goroutine of a cell a runner of its own and lets them run at once.
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

// together measures from the first start to the last end, as the baseline in C does.
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
