// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/ticks"
	"github.com/goverbs/goverbs/internal/processors"
)

// Report is the result of a test.
type Report struct {
	Test        string `json:"test"` // name of the perftest program
	Connection  string `json:"connection"`
	QPs         int    `json:"queue_pairs"`
	Device      string `json:"device"`
	MTU         int    `json:"mtu"`
	Peer        string `json:"peer"`
	PeerVersion string `json:"peer_version"`
	Client      bool   `json:"client"`
	Latency     bool   `json:"latency"`
	Both        bool   `json:"both_ways"` // rates are sums of both ends
	Rows        []Row  `json:"results"`

	// Counters has the changes of the port's counters; unchanged counters are left out.
	Counters map[string]int64 `json:"counters"`

	PeerIsOurs bool `json:"peer_is_goverbs"`

	NoTCP string `json:"tcp_missing,omitempty"` // why the TCP baseline is missing

	// Interrupted reports that the test was interrupted; the last row is incomplete.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Row is the result of one size. Times are in microseconds; for a ping-pong they are half the round trip.
type Row struct {
	Size     int     `json:"bytes"`
	Messages int     `json:"messages"`
	MiBs     float64 `json:"mib_per_s,omitempty"`
	Gbits    float64 `json:"gbit_per_s,omitempty"`
	Mps      float64 `json:"million_messages_per_s,omitempty"`
	Min      float64 `json:"min_us,omitempty"`
	Median   float64 `json:"median_us,omitempty"`
	Average  float64 `json:"average_us,omitempty"`
	Stdev    float64 `json:"stdev_us,omitempty"`
	P99      float64 `json:"p99_us,omitempty"`
	P999     float64 `json:"p999_us,omitempty"`
	Max      float64 `json:"max_us,omitempty"`
	CPU      float64 `json:"cpu_us_per_message"` // used by this process

	TCP   *Row    `json:"tcp,omitempty"`       // TCP baseline
	Ratio float64 `json:"ratio_tcp,omitempty"` // MiB/s, or median, relative to TCP

	began, ended time.Time
	times        []time.Duration // sorted latencies
}

// meter takes timestamps.
type meter struct {
	start time.Time
	cpu   time.Duration
	clock *ticks.Clock // nil: marks are nanoseconds
	marks []int64      // timestamps of clock
}

func begin() *meter {
	return &meter{start: time.Now(), cpu: processors.Time(), clock: ticks.Start(), marks: make([]int64, 0, 1024)}
}

func (m *meter) mark() { m.marks = append(m.marks, m.clock.Now()) }

func (m *meter) perMessage(messages int) float64 {
	if messages == 0 {
		return 0
	}
	return microseconds(processors.Time()-m.cpu) / float64(messages)
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// bandwidth returns the result for the messages since the start.
func (m *meter) bandwidth(size, messages int) *Row {
	row := &Row{Size: size, Messages: messages, CPU: m.perMessage(messages), began: m.start, ended: time.Now()}
	row.add(float64(messages) / time.Since(m.start).Seconds())
	return row
}

// add adds a rate in messages per second.
func (r *Row) add(rate float64) {
	r.Mps += rate / 1e6
	r.MiBs += rate * float64(r.Size) / (1 << 20)
	r.Gbits += rate * float64(r.Size) * 8 / 1e9
}

func (r *Row) outcome() outcome {
	return outcome{uint64(r.Size), uint64(r.Messages), r.MiBs, r.MiBs, r.Mps}
}

// latency returns the result for the intervals between marks; each interval covers a number of messages.
func (m *meter) latency(size, share int) *Row {
	row := &Row{Size: size, Messages: max(0, len(m.marks)-1), began: m.start, ended: time.Now()}
	if row.Messages == 0 {
		return row
	}
	row.CPU = m.perMessage(row.Messages)
	all, duration := make([]time.Duration, row.Messages), m.clock.Durations()
	for i := range all {
		all[i] = duration(m.marks[i+1]-m.marks[i]) / time.Duration(share)
	}
	slices.Sort(all)
	row.times = all
	at := func(part float64) float64 { return microseconds(all[min(len(all)-1, int(part*float64(len(all))))]) }
	row.Min, row.Median, row.P99, row.P999, row.Max = at(0), at(0.5), at(0.99), at(0.999), at(1)
	row.Average, row.Stdev = meanDeviation(all)
	return row
}

// meanDeviation returns the mean and the standard deviation in microseconds.
func meanDeviation(all []time.Duration) (mean, stdev float64) {
	for _, d := range all {
		mean += microseconds(d)
	}
	mean /= float64(len(all))
	for _, d := range all {
		stdev += (microseconds(d) - mean) * (microseconds(d) - mean)
	}
	return mean, math.Sqrt(stdev / float64(len(all)))
}

// addBaseline adds the TCP baseline to each size.
func (r *Report) addBaseline(tcp []*Row) {
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, other := range tcp {
			if other == nil || other.Size != row.Size {
				continue
			}
			row.TCP = other
			if row.Ratio = row.MiBs / other.MiBs; r.Latency {
				row.Ratio = row.Median / other.Median
			}
			if math.IsNaN(row.Ratio) || math.IsInf(row.Ratio, 0) { // nothing was received
				row.Ratio = 0
			}
		}
	}
}

// compared reports whether there is a baseline.
func (r *Report) compared() bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool { return row.TCP != nil })
}

// WriteText writes a row for each size.
func (r *Report) WriteText(w io.Writer) error {
	peer := "perftest " + r.PeerVersion
	if r.PeerIsOurs {
		peer = "goverbs"
	}
	fmt.Fprintf(w, "%s  %s  %s  MTU %d  queue pairs %d  peer %s (%s)\n\n", r.Test, r.Device, r.Connection, r.MTU,
		r.QPs, r.Peer, peer)
	if len(r.Rows) == 0 {
		fmt.Fprintln(w, "the client has the results")
		return r.writeCounters(w)
	}
	head, rows := r.table()
	if err := page.Table(w, head, rows); err != nil {
		return err
	}
	if r.NoTCP != "" {
		fmt.Fprintf(w, "\n%s\n", r.NoTCP)
	}
	return r.writeCounters(w)
}

// table returns the results, with a row for each size.
func (r *Report) table() (head []string, rows [][]string) {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	head = []string{"BYTES", "MESSAGES", "MiB/s", "Gbit/s", "MILLION/s", "CPU µs/MSG"}
	if r.Latency {
		head = []string{"BYTES", "MESSAGES", "MIN µs", "MEDIAN", "AVERAGE", "STDEV", "99 %", "99.9 %", "MAX",
			"CPU µs/MSG"}
	}
	compared := r.compared()
	if compared && r.Latency {
		head = append(head, "TCP MEDIAN", "× TCP")
	} else if compared {
		head = append(head, "TCP MiB/s", "× TCP")
	}
	for _, v := range r.Rows {
		row := []string{strconv.Itoa(v.Size), strconv.Itoa(v.Messages)}
		values := []float64{v.MiBs, v.Gbits, v.Mps, v.CPU}
		if r.Latency {
			values = []float64{v.Min, v.Median, v.Average, v.Stdev, v.P99, v.P999, v.Max, v.CPU}
		}
		if tcp := v.TCP; compared && tcp != nil {
			of := tcp.MiBs
			if r.Latency {
				of = tcp.Median
			}
			values = append(values, of, v.Ratio)
		}
		for _, n := range values {
			row = append(row, number(n))
		}
		rows = append(rows, row)
	}
	return head, rows
}
