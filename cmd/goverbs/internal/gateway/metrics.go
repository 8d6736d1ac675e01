// SPDX-License-Identifier: BSD-2-Clause

package gateway

import (
	"strconv"
	"sync"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/exporter"
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

func metric(name, help string, kind exporter.Kind, labels ...string) *exporter.Metric {
	return exporter.NewMetric("goverbs_s3_"+name, help, kind, labels...)
}

var (
	transfers = metric("transfers_total", "Objects and parts moved by RDMA.", exporter.Counter, "op")
	moved     = metric("transfer_bytes_total", "Bytes moved by RDMA.", exporter.Counter, "op")
	declined  = metric("declined_total", "Control requests that were declined.", exporter.Counter, "reason")
	expired   = metric("expired_sessions_total", "Transfers that a client prepared and did not start.", exporter.Counter)
	sessions  = metric("sessions", "Transfers that are prepared or under way.", exporter.Gauge)
	staged    = metric("staged_bytes", "Memory of these transfers.", exporter.Gauge)
	discarded = metric("discarded_transfers", "Transfers whose memory is not reused, because its key could not be "+
		"revoked.", exporter.Gauge)
	answers = metric("backend_responses_total", "Responses of the S3 server, 502 if there was none.", exporter.Counter,
		"code")
)

// Collect implements exporter.Source.
func (g *Gateway) Collect(to *exporter.Scrape) {
	s := g.handler.Stats()
	to.Add(transfers, float64(s.Puts), "put")
	to.Add(transfers, float64(s.Gets), "get")
	to.Add(moved, float64(s.PutBytes), "put")
	to.Add(moved, float64(s.GetBytes), "get")
	for _, reason := range s3rdma.Reasons {
		to.Add(declined, float64(s.Declined[reason]), reason)
	}
	to.Add(expired, float64(s.Expired))
	to.Add(sessions, float64(s.Sessions))
	to.Add(staged, float64(s.Staged))
	to.Add(discarded, float64(s.Discarded))
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	for code, n := range g.requests.code {
		to.Add(answers, float64(n), strconv.Itoa(code))
	}
}
