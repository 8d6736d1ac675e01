// SPDX-License-Identifier: BSD-2-Clause

// Command bench measures how long reading headers and generating take: minimum and median over several rounds, and peak
// memory. It compares them with the limits of the project.
package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/record"
)

const (
	rounds = 9
	limit  = 500 * time.Millisecond
	memory = 300 // MiB
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile("headers/headers.lock")
	if err != nil {
		return err
	}
	lock, err := fetch.ParseLock("headers/headers.lock", text)
	if err != nil {
		return err
	}
	fmt.Printf("%-28s %10s %10s %8s  (%d rounds, %d CPUs)\n", "", "minimum", "median", "limit", rounds,
		runtime.GOMAXPROCS(0))
	for _, rel := range lock.Releases {
		if err := fetch.Verify("headers/cache", rel); err != nil {
			fmt.Printf("read %-24s not measured: %v\n", rel, err)
			continue
		}
		if err := measure("read "+rel.String(), func() error {
			_, err := record.FromCache("headers/cache", "headers/cache", lock, rel, nil)
			return err
		}); err != nil {
			return err
		}
	}
	var primary []string
	for _, rel := range lock.Releases {
		if rel.Role == fetch.Primary {
			primary = append(primary, rel.File())
		}
	}
	if err := measure("emit generated/", func() error {
		_, err := generate.FromModels(generate.Sources{Models: "headers/models", Measured: "headers/measured",
			Ioctls: "headers/ioctls"}, primary...)
		return err
	}); err != nil {
		return err
	}
	peak, err := peakMemory()
	if err != nil {
		return err
	}
	fmt.Printf("%-28s %7d MiB %21s\n", "peak memory", peak, fmt.Sprintf("%d MiB", memory))
	return nil
}

func measure(name string, do func() error) error {
	var took []time.Duration
	for range rounds {
		start := time.Now()
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		took = append(took, time.Since(start))
	}
	slices.SortFunc(took, cmp.Compare[time.Duration])
	over := ""
	if took[0] > limit {
		over = "  OVER THE LIMIT"
	}
	fmt.Printf("%-28s %10s %10s %8s%s\n", name, took[0].Round(time.Millisecond), took[rounds/2].Round(time.Millisecond),
		limit, over)
	return nil
}

// peakMemory returns the peak resident memory of the process in MiB.
func peakMemory() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmHWM")
}
