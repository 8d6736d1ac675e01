// SPDX-License-Identifier: BSD-2-Clause

package gateway

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goverbs/goverbs/s3rdma"
)

// requests counts responses of the backend by status code.
type requests struct {
	mu   sync.Mutex
	code map[int]uint64
}

func (r *requests) count(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.code == nil {
		r.code = map[int]uint64{}
	}
	r.code[code]++
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("goverbs_s3_"+name, help, labels, nil)
}

var (
	transfers = desc("transfers_total", "Objects and parts moved by RDMA.", "op")
	moved     = desc("transfer_bytes_total", "Bytes moved by RDMA.", "op")
	declined  = desc("declined_total", "Control requests that were declined.", "reason")
	expired   = desc("expired_sessions_total", "Transfers that a client prepared and did not start.")
	sessions  = desc("sessions", "Transfers that are prepared or under way.")
	staged    = desc("staged_bytes", "Memory of these transfers.")
	discarded = desc("discarded_transfers", "Transfers whose memory is not reused, because its key could not be revoked.")
	answers   = desc("backend_responses_total", "Responses of the S3 server, 502 if there was none.", "code")
)

// Describe implements prometheus.Collector.
func (g *Gateway) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{transfers, moved, declined, expired, sessions, staged, discarded, answers} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (g *Gateway) Collect(to chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	s := g.handler.Stats()
	counter(transfers, s.Puts, "put")
	counter(transfers, s.Gets, "get")
	counter(moved, s.PutBytes, "put")
	counter(moved, s.GetBytes, "get")
	for _, reason := range s3rdma.Reasons {
		counter(declined, s.Declined[reason], reason)
	}
	counter(expired, s.Expired)
	gauge(sessions, float64(s.Sessions))
	gauge(staged, float64(s.Staged))
	gauge(discarded, float64(s.Discarded))
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	for code, n := range g.requests.code {
		counter(answers, n, strconv.Itoa(code))
	}
}

// registry has the metrics of the gateway.
func (g *Gateway) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(g)
	return r
}
