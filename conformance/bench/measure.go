// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"
)

const (
	rounds       = 21
	plainSamples = 3 // in each round, for a plain cell
	plainLength  = time.Millisecond
	length       = 400 * time.Microsecond

	// budget is the time after which cells that are not plain are no longer sampled, to limit the total to 50 s on a
	// busy machine.
	budget = 40 * time.Second
)

// figure is the result of an implementation for a cell: nanoseconds for a call with a complete list, or for a poll.
type figure struct{ min, median float64 }

// results holds the figures of every measured cell and implementation.
type results map[cell]map[string]figure

// task is an implementation to be measured for a cell.
type task struct {
	cell   cell
	impl   string
	sample sampler
	n      int
	ns     []float64
}

// prepare prepares all cells, or those whose labels match, and calibrates the number of repetitions in a sample.
func prepare(stubs map[stubKind]*stub, match *regexp.Regexp) (tasks []*task, err error) {
	for _, c := range cells() {
		for _, impl := range implementations {
			if match != nil && !match.MatchString(c.label(impl.name)) {
				continue
			}
			sample, err := impl.prepare(c, stubs[c.stub])
			if err != nil {
				return nil, fmt.Errorf("%s: %v: %w", impl.name, c, err)
			}
			tasks = append(tasks, &task{cell: c, impl: impl.name, sample: sample})
		}
	}
	return tasks, nil
}

// calibrate determines the number of repetitions for the length of a sample.
func (t *task) calibrate() error {
	want := length
	if t.cell.plain() {
		want = plainLength
	}
	// Warm up, to exclude first accesses to memory, and the turns after which a lock is biased to a goroutine.
	if _, err := t.sample(100 * t.cell.qps); err != nil {
		return fmt.Errorf("%s: %v: %w", t.impl, t.cell, err)
	}
	for n := 64; ; n *= 4 {
		elapsed, err := t.sample(n)
		if err != nil {
			return fmt.Errorf("%s: %v: %w", t.impl, t.cell, err)
		}
		if elapsed >= want/8 || n > 1<<24 {
			t.n = max(1, int(float64(n)*float64(want)/float64(max(elapsed, 1))))
			return nil
		}
	}
}

func (t *task) measure() error {
	if _, err := t.sample(max(t.n/16, 4*t.cell.qps)); err != nil { // warms caches and predictors
		return err
	}
	elapsed, err := t.sample(t.n)
	if err != nil {
		return fmt.Errorf("%s: %v: %w", t.impl, t.cell, err)
	}
	t.ns = append(t.ns, float64(elapsed)/float64(t.n*t.cell.goroutines))
	return nil
}

// measure samples cells and implementations in interleaved rounds, so that load on the machine affects all of them
// alike and the minimum hardly at all.
func measure(tasks []*task) (results, error) {
	start := time.Now()
	for _, t := range tasks {
		if err := t.calibrate(); err != nil {
			return nil, err
		}
	}
	for range rounds {
		for again := range plainSamples {
			for _, t := range tasks {
				timedOut := len(t.ns) > 0 && time.Since(start) > budget
				if t.cell.plain() || again == 0 && !timedOut {
					if err := t.measure(); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	all := results{}
	for _, t := range tasks {
		if all[t.cell] == nil {
			all[t.cell] = map[string]figure{}
		}
		slices.Sort(t.ns)
		all[t.cell][t.impl] = figure{min: t.ns[0], median: t.ns[len(t.ns)/2]}
	}
	return all, nil
}

// ratio returns the ratio of an implementation's minimum to C's.
func (r results) ratio(c cell, impl string) float64 {
	base := r[c][implC].min
	if base == 0 {
		return math.NaN()
	}
	return r[c][impl].min / base
}
