// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Kind is the type of a metric.
type Kind string

const (
	Counter Kind = "COUNTER"
	Gauge   Kind = "GAUGE"
)

// Metric describes a metric family.
type Metric struct {
	name, help string
	kind       Kind
	labels     []string
	file       string  // sysfs file of a port counter
	factor     float64 // of its values
}

// NewMetric returns a description. The name of a counter ends in _total.
func NewMetric(name, help string, kind Kind, labels ...string) *Metric {
	return &Metric{name: name, help: help, kind: kind, labels: labels}
}

// Source collects metrics. Collect is safe for concurrent use.
type Source interface{ Collect(*Scrape) }

// Scrape holds the metrics of one collection.
type Scrape struct{ families map[*Metric]*Family }

// Gather returns the metrics of a source in sorted order. It returns an error if two values of a metric have the same
// labels.
func Gather(from Source) (Families, error) {
	s := &Scrape{map[*Metric]*Family{}}
	from.Collect(s)
	var all Families
	for _, f := range s.families {
		slices.SortFunc(f.Metrics, func(a, b *Value) int { return slices.Compare(a.sorted, b.sorted) })
		for i := range f.Metrics[1:] {
			if v := f.Metrics[i]; slices.Equal(v.sorted, f.Metrics[i+1].sorted) {
				return nil, fmt.Errorf("metric %s: %v was collected twice", f.Name, v.Labels)
			}
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *Family) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Add adds a value, with one label for each label name of the metric. It replaces invalid UTF-8 in labels, which may
// come from other programs.
func (s *Scrape) Add(m *Metric, value float64, labels ...string) {
	f := s.families[m]
	if f == nil {
		f = &Family{Name: m.name, Type: m.kind, Help: m.help}
		s.families[m] = f
	}
	v := &Value{Labels: map[string]string{}, Value: value}
	for i, name := range m.labels {
		v.Labels[name] = strings.ToValidUTF8(labels[i], "?")
	}
	for _, name := range slices.Sorted(maps.Keys(v.Labels)) {
		v.sorted = append(v.sorted, v.Labels[name])
	}
	f.Metrics = append(f.Metrics, v)
}

// Family is a metric family in JSON.
type Family struct {
	Name    string   `json:"name"`
	Type    Kind     `json:"type"`
	Help    string   `json:"help"`
	Metrics []*Value `json:"metrics"`
}

// Value is a value of a metric, with its labels.
type Value struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
	sorted []string          // labels by name
}

// Families holds all metrics of a scrape.
type Families []*Family

// WriteText writes the metrics in Prometheus's text format 0.0.4.
func (all Families) WriteText(w io.Writer) error { return all.write(w, false) }

// WriteOpenMetrics writes the metrics as OpenMetrics 1.0.
func (all Families) WriteOpenMetrics(w io.Writer) error { return all.write(w, true) }

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (all Families) write(to io.Writer, open bool) error {
	w := bufio.NewWriter(to) // keeps the first error for Flush
	for _, f := range all {
		name, help := f.Name, escapeHelp.Replace(f.Help)
		if open { // a counter's family has no suffix, and quotes in help are escaped, too
			name, help = strings.TrimSuffix(name, "_total"), escapeLabel.Replace(f.Help)
		}
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, strings.ToLower(string(f.Type)))
		for _, m := range f.Metrics {
			w.WriteString(f.Name)
			separator := "{"
			for _, label := range slices.Sorted(maps.Keys(m.Labels)) {
				fmt.Fprintf(w, `%s%s="%s"`, separator, label, escapeLabel.Replace(m.Labels[label]))
				separator = ","
			}
			if len(m.Labels) > 0 {
				w.WriteByte('}')
			}
			value := strconv.FormatFloat(m.Value, 'g', -1, 64)
			if open && !strings.ContainsAny(value, "e.NI") {
				value += ".0"
			}
			fmt.Fprintf(w, " %s\n", value)
		}
	}
	if open {
		w.WriteString("# EOF\n")
	}
	return w.Flush()
}
