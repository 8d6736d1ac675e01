// SPDX-License-Identifier: BSD-2-Clause

// Command mlx5 compares posting and polling through libmlx5, from C and from Go, with the data path in Go (rdma/mlx5),
// in one process and one run. It writes results/mlx5.csv.
//
// libmlx5 is Debian's, of the recorded release, over the emulated kernel of conformance/provider, whose device is
// passive: the command writes the completions itself. Doorbell registers are ordinary memory. The results are processor
// time only, without an adapter.
package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/conformance/provider"
	"github.com/goverbs/goverbs/headers"
)

const envInside = "GOVERBS_BENCH_MLX5"

func main() {
	run := runEmulated
	if os.Getenv(envInside) != "" {
		run = measureAll
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mlx5:", err)
		os.Exit(1)
	}
}

// runEmulated runs the command again over the emulated kernel.
func runEmulated() error {
	ctx := context.Background()
	libraries, err := provider.Open(ctx, headers.Primary("rdma-core"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "goverbs-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e, err := provider.Build(ctx, libraries, dir)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := e.Command(ctx, self)
	cmd.Env = append(cmd.Env, envInside+"=1", "GOVERBS_EMULATED_STILL=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// cases lists the cases to measure. batch is the number of requests in a list, or of completions in a poll.
var cases = []struct {
	name    string
	batches []int
}{
	{"post", []int{1, 16, 64}},
	{"post-inline", []int{1, 16, 64}},
	{"wr", []int{1, 16, 64}}, // like post, but with ibv_wr_start and its siblings
	{"poll", []int{0, 1, 16}},
}

// figure is the result of a case, in nanoseconds per call.
type figure struct{ min, median float64 }

const samples = 1001

func measureAll() error {
	impls, err := implementations()
	if err != nil {
		return err
	}
	rows := [][]string{{"case", "batch", "impl", "min_ns", "median_ns"}}
	all := map[string]figure{}
	for _, c := range cases {
		for _, batch := range c.batches {
			ns := make([][]float64, len(impls))
			for range samples {
				for i, impl := range impls {
					elapsed, calls, err := impl.sample(c.name, batch)
					if err != nil {
						return fmt.Errorf("%s: %s of %d: %w", impl.name, c.name, batch, err)
					}
					ns[i] = append(ns[i], float64(elapsed)/float64(calls))
				}
			}
			for i, impl := range impls {
				slices.Sort(ns[i])
				f := figure{ns[i][0], ns[i][samples/2]}
				all[fmt.Sprintf("%s/%d/%s", c.name, batch, impl.name)] = f
				rows = append(rows, []string{c.name, strconv.Itoa(batch), impl.name, number(f.min), number(f.median)})
			}
		}
	}
	for _, r := range rows[1:] {
		base := all[fmt.Sprintf("%s/%s/c", r[0], r[1])]
		ours := all[fmt.Sprintf("%s/%s/%s", r[0], r[1], r[2])]
		fmt.Printf("%-12s %3s %-20s %9s %9s  %.2f\n", r[0], r[1], r[2], r[3], r[4], ours.median/base.median)
	}
	floor := storesAlone()
	fmt.Printf("%-36s %9s %9s  %.2f\n", "stores and fences of a post alone", number(floor.min), number(floor.median),
		floor.median/all["post/1/c"].median)
	printTargets(all)
	return write(rows)
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

func write(rows [][]string) error {
	if err := os.MkdirAll("results", 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join("results", "mlx5.csv"))
	if err != nil {
		return err
	}
	defer f.Close()
	return csv.NewWriter(f).WriteAll(rows)
}

// targets are limits for sums of cases relative to C, for the medians of one run.
var targets = []struct {
	what  string
	impl  string
	of    []string
	limit float64
}{
	{"default, post of one", "go-default", []string{"post/1"}, 1.10},
	{"objects, checked, post and poll of one", "go-default-checked", []string{"post/1", "poll/1"}, 1.35},
	{"native, post of one", "go-native", []string{"post/1"}, 0.65},
	{"native, checked objects, post of one", "go-native-checked", []string{"post/1"}, 1.0},
	{"native, 16 inline", "go-native", []string{"post-inline/16"}, 1.0},
	{"native, poll of 16", "go-native", []string{"poll/16"}, 0.8},
}

func printTargets(all map[string]figure) {
	for _, t := range targets {
		var ours, c float64
		for _, of := range t.of {
			ours += all[of+"/"+t.impl].median
			c += all[of+"/c"].median
		}
		verdict := "ok"
		if ours/c > t.limit {
			verdict = "missed"
		}
		fmt.Printf("%-42s ≤ %.2f: %.2f %s\n", t.what, t.limit, ours/c, verdict)
	}
}

// timed returns the duration of f.
func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}
