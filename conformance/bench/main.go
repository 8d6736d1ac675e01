// SPDX-License-Identifier: BSD-2-Clause

// Command bench measures post_send and poll_cq from Go against C, cgo and purego, in one process and one run, on a
// device with minimal work. It writes results/post.csv and poll.csv, a table and a chart, and reports which targets
// were met.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"
)

func main() {
	out := flag.String("out", "results", "directory of the results; empty to write none")
	only := flag.Bool("objects", false, "measure only the objects of package rdma")
	which := flag.String("cells", "", "measure the cells alone whose names match, and the objects where \"objects\" "+
		"does, and print them as Go's benchmarks for benchstat")
	flag.Parse()
	measure := run
	switch {
	case *which != "":
		measure = func(string) error { return runCells(*which) }
	case *only:
		measure = runObjects
	}
	if err := measure(*out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	start := time.Now()
	stubs := map[stubKind]*stub{stubReturn: openStub(stubReturn, 1024), stubWQE: openStub(stubWQE, 1024),
		stubCapture: openStub(stubCapture, 1)}
	if err := sameBytes(stubs[stubCapture]); err != nil {
		return err
	}
	tasks, err := prepare(stubs, nil)
	if err != nil {
		return err
	}
	all, err := measure(tasks)
	if err != nil {
		return err
	}
	table(os.Stdout, all)
	if out != "" {
		if err := write(out, all); err != nil {
			return err
		}
	}
	printTargets(os.Stdout, all)
	if err := runObjects(out); err != nil {
		return err
	}
	least := rounds
	for _, t := range tasks {
		least = min(least, len(t.ns))
	}
	fmt.Printf("%d samples of each plain cell, %d or more of the others, in %.0f s\n", rounds*plainSamples, least,
		time.Since(start).Seconds())
	return nil
}

// runCells prints the results of some cells, for the Go implementations and C.
func runCells(which string) error {
	match, err := regexp.Compile(which)
	if err != nil {
		return err
	}
	stubs := map[stubKind]*stub{stubReturn: openStub(stubReturn, 1024), stubWQE: openStub(stubWQE, 1024)}
	tasks, err := prepare(stubs, match)
	if err != nil {
		return err
	}
	all, err := measure(tasks)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		fmt.Printf("Benchmark%s 1 %.3f ns/op %.3f min-ns\n", t.cell.label(t.impl), all[t.cell][t.impl].median,
			all[t.cell][t.impl].min)
	}
	if !match.MatchString("objects") {
		return nil
	}
	rows, err := measureObjects()
	for _, r := range rows {
		for name, f := range map[string]figure{"bare": r.bare, "checked": r.objects, "unchecked": r.unchecked} {
			fmt.Printf("BenchmarkObjects/%s/batch=%d 1 %.3f ns/op %.3f min-ns\n", name, r.batch, f.median, f.min)
		}
	}
	return err
}
