// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
)

// Family is a metric family in JSON.
type Family struct {
	Name    string  `json:"name"`
	Type    string  `json:"type"` // COUNTER, GAUGE
	Help    string  `json:"help"`
	Metrics []Value `json:"metrics"`
}

// Value is a metric.
type Value struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// Families are all metrics of a scrape.
type Families []Family

// Document converts the result of a registry.
func Document(gathered []*dto.MetricFamily) (all Families) {
	for _, f := range gathered {
		one := Family{Name: f.GetName(), Type: f.GetType().String(), Help: f.GetHelp()}
		for _, m := range f.GetMetric() {
			v := Value{Labels: map[string]string{}, Value: m.GetCounter().GetValue() + m.GetGauge().GetValue()}
			for _, l := range m.GetLabel() {
				v.Labels[l.GetName()] = l.GetValue()
			}
			one.Metrics = append(one.Metrics, v)
		}
		all = append(all, one)
	}
	return all
}

// WriteText writes a line for each metric.
func (all Families) WriteText(w io.Writer) error {
	for _, f := range all {
		for _, m := range f.Metrics {
			if _, err := fmt.Fprintln(w, f.Name, m.Labels, m.Value); err != nil {
				return err
			}
		}
	}
	return nil
}
