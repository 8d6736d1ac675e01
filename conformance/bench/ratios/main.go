// SPDX-License-Identifier: BSD-2-Clause

// Command ratios compares the speeds of two programs that ran in interleaved rounds:
//
//	ratios [-most PERCENT] [-but OPERATION=PERCENT]... before.txt after.txt
//
// Each file has output of examples/demo (operation,per second) or of Go benchmarks (Benchmark… ns/op), once for each
// round. It prints the ratios of the medians and of the best rounds, and fails if both are slower for an operation.
// Load can only slow a round down, so the best one is most reliable on a busy machine.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	may := limits{most: 3}
	flag.Float64Var(&may.most, "most", may.most, "maximum slowdown in `percent`")
	flag.Func("but", "maximum slowdown of one operation: `operation=percent`", may.but)
	flag.Parse()
	if err := run(os.Stdout, flag.Args(), may); err != nil {
		fmt.Fprintln(os.Stderr, "ratios:", err)
		os.Exit(1)
	}
}

// limits holds the maximum slowdowns in percent.
type limits struct {
	most float64
	each map[string]float64 // exceptions for operations
}

func (l *limits) but(s string) error {
	name, percent, _ := strings.Cut(s, "=")
	v, err := strconv.ParseFloat(percent, 64)
	if l.each == nil {
		l.each = map[string]float64{}
	}
	l.each[name] = v
	return err
}

// of returns the limit of an operation.
func (l *limits) of(name string) float64 {
	if v, ok := l.each[name]; ok {
		return v
	}
	return l.most
}

func run(w io.Writer, names []string, may limits) error {
	if len(names) != 2 {
		return errors.New("want two files: before and after")
	}
	before, order, err := read(names[0])
	if err != nil {
		return err
	}
	after, _, err := read(names[1])
	if err != nil {
		return err
	}
	for name := range may.each {
		if len(before[name]) == 0 {
			return fmt.Errorf("%s has no operation %s, named by -but", names[0], name)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "operation\tbefore, ns\tafter, ns\tratio\tratio of medians\t\n")
	var slower []string
	for _, name := range order {
		if len(after[name]) == 0 {
			return fmt.Errorf("%s has no %s", names[1], name)
		}
		was, median := spread(before[name])
		is, medianNow := spread(after[name])
		verdict := ""
		if least := 1 - may.of(name)/100; is/was < least && medianNow/median < least {
			verdict = "slower"
			slower = append(slower, fmt.Sprintf("%s, by more than %g %%", name, may.of(name)))
		}
		fmt.Fprintf(t, "%s\t%10.1f\t%9.1f\t%.3f\t%.3f\t%s\n", name, 1e9/was, 1e9/is, is/was, medianNow/median, verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	switch {
	case len(order) == 0:
		return fmt.Errorf("%s has no speeds", names[0])
	case len(slower) > 0:
		return fmt.Errorf("slower: %s", strings.Join(slower, "; "))
	}
	return nil
}

// spread returns the best speed and the median.
func spread(speeds []float64) (best, median float64) {
	slices.Sort(speeds)
	return speeds[len(speeds)-1], speeds[len(speeds)/2]
}

// read returns operations per second by name, one for each round, and the names in order.
func read(file string) (speeds map[string][]float64, order []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	speeds = map[string][]float64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, speed := parse(lines.Text())
		if speed == 0 {
			continue
		}
		if speeds[name] == nil {
			order = append(order, name)
		}
		speeds[name] = append(speeds[name], speed)
	}
	return speeds, order, lines.Err()
}

// parse parses a line. The speed is 0 if the line has none.
func parse(line string) (name string, perSecond float64) {
	if benchmark, ok := strings.CutPrefix(line, "Benchmark"); ok {
		fields := strings.Fields(benchmark)
		if len(fields) < 4 || fields[3] != "ns/op" {
			return "", 0
		}
		ns, err := strconv.ParseFloat(fields[2], 64)
		if err != nil || ns <= 0 {
			return "", 0
		}
		return fields[0], 1e9 / ns
	}
	i := strings.LastIndexByte(line, ',')
	speed, err := strconv.ParseFloat(line[i+1:], 64)
	if i < 0 || err != nil {
		return "", 0
	}
	return line[:i], speed
}
