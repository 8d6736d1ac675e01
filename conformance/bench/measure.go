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
	plainSamples = 3 // of a plain cell in each round
	plainLength  = time.Millisecond
	length       = 400 * time.Microsecond

	// budget is when cells that are not plain go without further samples: on a busy machine, so that the whole stays
	// under 50 s.
	budget = 40 * time.Second
)

// figure is what one implementation showed at one cell: nanoseconds for each call of the whole list, or each poll.
type figure struct{ min, median float64 }

// results are of every cell and implementation that was measured.
type results map[cell]map[string]figure

// task is an implementation at a cell.
type task struct {
	cell   cell
	impl   string
	sample sampler
	n      int
	ns     []float64
}

// prepare makes what has to be measured, of all cells or of those whose labels match, and settles how often a sample
// does its case.
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

// calibrate finds how many times make a sample of its length.
func (t *task) calibrate() error {
	want := length
	if t.cell.plain() {
		want = plainLength
	}
	// Neither the first touch of memory is a part of it, nor the turns after which a lock belongs to a goroutine.
	if _, err := t.sample(100 * t.cell.qps); err != nil {
		return fmt.Errorf("%s: %v: %w", t.impl, t.cell, err)
	}
	for n := 64; ; n *= 4 {
		took, err := t.sample(n)
		if err != nil {
			return fmt.Errorf("%s: %v: %w", t.impl, t.cell, err)
		}
		if took >= want/8 || n > 1<<24 {
			t.n = max(1, int(float64(n)*float64(want)/float64(max(took, 1))))
			return nil
		}
	}
}

func (t *task) measure() error {
	if _, err := t.sample(max(t.n/16, 4*t.cell.qps)); err != nil { // caches and predictors
		return err
	}
	took, err := t.sample(t.n)
	if err != nil {
		return fmt.Errorf("%s: %v: %w", t.impl, t.cell, err)
	}
	t.ns = append(t.ns, float64(took)/float64(t.n*t.cell.goroutines))
	return nil
}

// measure takes the samples in turn over cells and implementations, again and again: what else happens on the machine
// for a while meets all of them, and the minimum none.
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
				late := len(t.ns) > 0 && time.Since(start) > budget
				if t.cell.plain() || again == 0 && !late {
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

// ratio is how many times C's minimum an implementation's is.
func (r results) ratio(c cell, impl string) float64 {
	base := r[c][implC].min
	if base == 0 {
		return math.NaN()
	}
	return r[c][impl].min / base
}
