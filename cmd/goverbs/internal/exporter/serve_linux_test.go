// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startServer starts a server and returns its address and a function that stops it.
func startServer(t *testing.T) (address string, end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	at, done := make(chan string, 1), make(chan error, 1)
	collector := &Collector{Host: simulatedHost(t), By: "name", Processes: 50}
	go func() {
		done <- Serve(ctx, "127.0.0.1:0", collector, func(a net.Addr) { at <- a.String() })
	}()
	t.Cleanup(cancel)
	return <-at, func() error {
		cancel()
		return <-done
	}
}

// get requests a page.
func get(t *testing.T, url string) (status int, body string) {
	r, err := http.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(text)
}

func TestServe(t *testing.T) {
	address, end := startServer(t)
	status, body := get(t, "http://"+address+"/metrics")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, "\ngoverbs_port_received_bytes_total{device=\"mlx5_0\",port=\"1\"} 1e+06\n")
	status, body = get(t, "http://"+address+"/healthz")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "ok\n", body)
	status, _ = get(t, "http://"+address+"/etc/passwd")
	assert.Equal(t, http.StatusNotFound, status)
	r, err := http.Post("http://"+address+"/metrics", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	r.Body.Close()
	assert.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	assert.NoError(t, end(), "the shutdown is graceful")
	_, err = net.Dial("tcp", address)
	assert.Error(t, err)
	assert.ErrorContains(t, Serve(t.Context(), "192.0.2.1:1", nil, nil), "--listen HOST:PORT")
}

// sourceFunc is a function as Source.
type sourceFunc func(*Scrape)

func (f sourceFunc) Collect(s *Scrape) { f(s) }

// TestFormats compares the formats with Prometheus's encoder, for values and labels that need care.
func TestFormats(t *testing.T) {
	m := NewMetric("m_total", "A \\ and \n and \"quotes\".", Counter, "zone", "a")
	g := NewMetric("g", "Help.", Gauge)
	var source sourceFunc = func(s *Scrape) {
		for i, label := range []string{`"quoted"`, "line\nfeed", `back\slash`, "ä", "\xff", ""} {
			s.Add(m, float64(i), label, "x")
			s.Add(m, 1e6*float64(i)+0.5, label, "")
		}
		s.Add(g, math.Inf(1))
	}
	handler := Handler(source)
	scrape := func(accept, encoding string) (text string, header http.Header) {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code)
		body := io.Reader(w.Body)
		if encoding == "gzip" {
			require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
			var err error
			body, err = gzip.NewReader(body)
			require.NoError(t, err)
		}
		all, err := io.ReadAll(body)
		require.NoError(t, err)
		return string(all), w.Header()
	}
	plain, header := scrape("text/plain, application/openmetrics-text;q=0.0", "")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(plain))
	require.NoError(t, err)
	assert.Contains(t, plain, `m_total{a="x",zone="?"} 4`)
	assert.Equal(t, `text/plain; version=0.0.4; charset=utf-8`, header.Get("Content-Type"))
	var want, wantOpen bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		_, err := expfmt.MetricFamilyToText(&want, parsed[name])
		require.NoError(t, err)
		_, err = expfmt.MetricFamilyToOpenMetrics(&wantOpen, parsed[name])
		require.NoError(t, err)
	}
	_, err = expfmt.FinalizeOpenMetrics(&wantOpen)
	require.NoError(t, err)
	assert.Equal(t, want.String(), plain)
	// Prometheus 3.0 sends this.
	open, header := scrape("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"+
		"text/plain;version=0.0.4;q=0.3,*/*;q=0.2", "gzip")
	assert.Equal(t, wantOpen.String(), open)
	assert.Equal(t, `application/openmetrics-text; version=1.0.0; charset=utf-8`, header.Get("Content-Type"))
}

// TestRejected checks the responses to too many scrapes at once and to values with the same labels.
func TestRejected(t *testing.T) {
	m := NewMetric("m", "Help.", Gauge, "label")
	started, end := make(chan struct{}), make(chan struct{})
	var source sourceFunc = func(s *Scrape) {
		started <- struct{}{}
		<-end
		s.Add(m, 1, "x")
		s.Add(m, 2, "x")
	}
	handler := Handler(source)
	answers := make(chan *httptest.ResponseRecorder)
	request := func() {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		answers <- w
	}
	for range maxScrapes {
		go request()
		<-started
	}
	go request()
	assert.Equal(t, http.StatusServiceUnavailable, (<-answers).Code)
	close(end)
	for range maxScrapes {
		w := <-answers
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		assert.Contains(t, w.Body.String(), "metric m: map[label:x] was collected twice")
	}
}

// TestHostile checks that peers which send too much or nothing are disconnected, and block neither other peers nor the
// shutdown.
func TestHostile(t *testing.T) {
	defer func(before time.Duration) { headerTime = before }(headerTime)
	headerTime = time.Second
	address, end := startServer(t)
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 1<<20))
	line, readErr := bufio.NewReader(c).ReadString('\n')
	if err == nil && readErr == nil { // or the connection was reset before all was sent
		assert.Contains(t, line, " 431 ")
	}
	for range maxConnections / 2 { // silent connections
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
	}
	status, _ := get(t, "http://"+address+"/metrics")
	assert.Equal(t, http.StatusOK, status)
	slow, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer slow.Close()
	_, err = slow.Write([]byte("GET /metrics HTTP/1.1\r\n"))
	require.NoError(t, err)
	require.NoError(t, slow.SetReadDeadline(time.Now().Add(headerTime+30*time.Second)))
	start := time.Now()
	_, _ = io.ReadAll(slow)
	assert.GreaterOrEqual(t, time.Since(start), headerTime/2)
	assert.Less(t, time.Since(start), headerTime+30*time.Second, "the connection was closed")
	http.DefaultClient.CloseIdleConnections()
	assert.NoError(t, end())
}

// TestIdleConnections checks that connections without requests, or without further ones, do not block others.
func TestIdleConnections(t *testing.T) {
	defer func(before time.Duration) { headerTime = before }(headerTime)
	headerTime = time.Hour
	address, _ := startServer(t)
	for i := range 3 * maxConnections {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		if i%2 == 0 {
			continue
		}
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, r.StatusCode)
	}
}
