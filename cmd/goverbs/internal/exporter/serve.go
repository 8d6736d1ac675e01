// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

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
func Handler(from Source) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", http.TimeoutHandler(&scraper{from: from, places: make(chan struct{}, maxScrapes)},
		scrapeTime, fmt.Sprintf("no metrics within %v\n", scrapeTime)))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "goverbs: see /metrics and /healthz")
	})
	return mux
}

// scraper serves the metrics of a source.
type scraper struct {
	from   Source
	places chan struct{} // occupied by scrapes
}

// ServeHTTP implements http.Handler.
func (s *scraper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		http.Error(w, fmt.Sprintf("%d scrapes are in progress", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	all, err := Gather(s.from)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header, write := w.Header(), all.WriteText
	header.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if accepts(r.Header["Accept"], "application/openmetrics-text") {
		header.Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		write = all.WriteOpenMetrics
	}
	if !accepts(r.Header["Accept-Encoding"], "gzip") {
		_ = write(w) // the client has gone
		return
	}
	header.Set("Content-Encoding", "gzip")
	compressed := gzip.NewWriter(w)
	_ = write(compressed)
	_ = compressed.Close()
}

// accepts reports whether the values of a header of HTTP name something, with a quality other than 0.
func accepts(header []string, name string) bool {
	for one := range strings.SplitSeq(strings.Join(header, ","), ",") {
		if value, parameters, _ := strings.Cut(one, ";"); strings.EqualFold(strings.TrimSpace(value), name) {
			return !strings.HasSuffix(strings.TrimRight(parameters, "0. "), "q=")
		}
	}
	return false
}

// Serve serves metrics at an address until the context ends. It calls at with the address once it listens.
func Serve(ctx context.Context, address string, from Source, at func(net.Addr)) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w; give an address with --listen HOST:PORT", err)
	}
	at(listener.Addr())
	return ServeOn(ctx, listener, from)
}

// ServeOn serves metrics on a listener until the context ends, and closes it.
func ServeOn(ctx context.Context, listener net.Listener, from Source) error {
	server := &http.Server{Handler: Handler(from), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime,
		WriteTimeout: scrapeTime + headerTime, IdleTimeout: headerTime, MaxHeaderBytes: maxHeader,
		ConnState: new(connLimit).stateChanged}
	done := make(chan error, 1)
	go func() { done <- server.Serve(netutil.LimitListener(listener, maxConnections)) }()
	select {
	case err := <-done:
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
