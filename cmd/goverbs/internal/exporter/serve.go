// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/net/netutil"
)

// Limits of requests.
const (
	maxConnections = 32
	maxScrapes     = 4       // concurrent
	maxHeader      = 8 << 10 // bytes
	scrapeTime     = 20 * time.Second
	endTime        = 5 * time.Second // for scrapes in progress at shutdown
)

// headerTime bounds the wait for a request. A test shortens it.
var headerTime = 5 * time.Second

// Handler serves /metrics and /healthz.
func Handler(r *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes,
		Timeout: scrapeTime, EnableOpenMetrics: true, ErrorHandling: promhttp.HTTPErrorOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "goverbs: see /metrics and /healthz")
	})
	return mux
}

// Serve serves metrics at an address until the context ends. It calls at with the address once it listens.
func Serve(ctx context.Context, address string, r *prometheus.Registry, at func(net.Addr)) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w; give an address with --listen HOST:PORT", err)
	}
	at(listener.Addr())
	return ServeOn(ctx, listener, r)
}

// ServeOn serves metrics on a listener until the context ends, and closes it.
func ServeOn(ctx context.Context, listener net.Listener, r *prometheus.Registry) error {
	server := &http.Server{Handler: Handler(r), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime,
		WriteTimeout: scrapeTime + headerTime, IdleTimeout: headerTime, MaxHeaderBytes: maxHeader,
		ConnState: new(connLimit).stateChanged}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(netutil.LimitListener(listener, maxConnections)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if err := server.Shutdown(soon); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// connLimit closes the connection that has been idle longest whenever maxConnections are open, so that idle connections
// cannot block others.
type connLimit struct {
	mu      sync.Mutex // guards the fields below
	open    int
	waiting []net.Conn
}

// stateChanged is the ConnState function of a server.
func (c *connLimit) stateChanged(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(other net.Conn) bool { return other == conn })
	switch state {
	case http.StateNew:
		c.open++
		c.waiting = append(c.waiting, conn)
	case http.StateIdle:
		c.waiting = append(c.waiting, conn)
	case http.StateClosed, http.StateHijacked:
		c.open--
	}
	if c.open >= maxConnections && len(c.waiting) > 0 && c.waiting[0] != conn {
		_ = c.waiting[0].Close() // the server detects it
		c.waiting = c.waiting[1:]
	}
}

// Write writes the metrics once, as text.
func Write(w io.Writer, r *prometheus.Registry) error {
	all, err := r.Gather()
	if err != nil {
		return err
	}
	for _, family := range all {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return err
		}
	}
	return nil
}
