// SPDX-License-Identifier: BSD-2-Clause

package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/s3rdma"
)

// signature returns a checksum of the signed parts of a request, with the secret of the test.
func signature(method, host, uri, hash string) string {
	return fmt.Sprintf("AWS4-HMAC-SHA256 Credential=AKID/20261128/us-east-1/s3/aws4_request, Signature=%x",
		sha256.Sum256([]byte(strings.Join([]string{"secret", method, host, uri, hash}, "\n"))))
}

func sign(_ context.Context, r *http.Request) error {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	r.Header.Set("Authorization", signature(r.Method, host, r.URL.RequestURI(), r.Header.Get("X-Amz-Content-Sha256")))
	return nil
}

// backend stores one object and accepts requests whose signature is valid for the host, the path and the query.
type backend struct {
	mu     sync.Mutex
	object []byte
	block  chan struct{} // GET requests wait for it, unless nil
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := signature(r.Method, r.Host, r.RequestURI, r.Header.Get("X-Amz-Content-Sha256"))
	if r.Header.Get("Authorization") != want {
		http.Error(w, "SignatureDoesNotMatch", http.StatusForbidden)
		return
	}
	if r.Header.Get("Accept-Encoding") == "gzip" {
		http.Error(w, "a header that the client did not send", http.StatusForbidden)
		return
	}
	if r.Method == http.MethodPut {
		data, err := io.ReadAll(r.Body)
		if err == nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.object = data
		}
		return
	}
	b.mu.Lock()
	block, data := b.block, b.object
	b.mu.Unlock()
	if block != nil && r.Method == http.MethodGet {
		<-block
	}
	w.Header().Set("ETag", `"1"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// fixture is a backend, a gateway and a client.
type fixture struct {
	t       *testing.T
	backend *backend
	server  *httptest.Server
	gateway *Gateway
	address string
	metrics string
	client  *http.Client
	moved   *s3rdma.Transport
	log     *lockedBuffer
	stop    context.CancelFunc
	ended   chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.Empty(t, fabric.Resources())
		assert.NoError(t, fabric.Close())
	})
	open := func(name string) *rdma.Device {
		d, err := rdma.OpenOn(fabric, name)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		return d
	}
	s := &fixture{t: t, backend: &backend{}, log: &lockedBuffer{}, ended: make(chan error, 1)}
	s.server = httptest.NewServer(s.backend)
	t.Cleanup(s.server.Close)
	o := Options{Backend: s.server.URL, Listen: "127.0.0.1:0", Metrics: "127.0.0.1:0", Grace: 5 * time.Second,
		Handler: s3rdma.HandlerOptions{Device: open("soft1"),
			Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}}
	if change != nil {
		change(&o)
	}
	s.gateway, err = Listen(o)
	require.NoError(t, err)
	s.address, s.metrics = s.gateway.Address()
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.ended <- s.gateway.Run(ctx) }()
	base := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true}
	s.moved, err = s3rdma.NewTransport(base, s3rdma.Options{Device: open("soft0"), Signer: s3rdma.SignerFunc(sign),
		Threshold: 1000})
	require.NoError(t, err)
	s.client = &http.Client{Transport: s.moved}
	t.Cleanup(func() {
		assert.NoError(t, s.moved.Close())
		base.CloseIdleConnections()
		stop()
		assert.NoError(t, <-s.ended)
	})
	return s
}

func (s *fixture) do(method, uri string, data []byte) (string, error) {
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.address+uri, bytes.NewReader(data))
	require.NoError(s.t, err)
	r.Header.Set("X-Amz-Content-Sha256", fmt.Sprintf("%x", sha256.Sum256(data)))
	require.NoError(s.t, sign(s.t.Context(), r))
	response, err := s.client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// scrape returns the gateway's metrics.
func (s *fixture) scrape() string {
	response, err := http.Get(s.metrics)
	require.NoError(s.t, err)
	defer response.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	return string(text)
}

// TestTransfers checks that a large object is transferred over RDMA and a small one over HTTP, below a path and a query
// that another proxy might rewrite.
func TestTransfers(t *testing.T) {
	s := newFixture(t, nil)
	for _, uri := range []string{"/bucket/key", "/bucket/a%2Fb%20c//d/../e+f?x-id=PutObject",
		"/b/k?versionId=a;b&x-id=%41"} {
		for _, size := range []int{1, 100000} {
			data := bytes.Repeat([]byte{byte(size), 1, 2, 3}, (size+3)/4)[:size]
			_, err := s.do(http.MethodPut, uri, data)
			require.NoError(t, err, uri)
			got, err := s.do(http.MethodGet, uri, nil)
			require.NoError(t, err, uri)
			assert.Equal(t, string(data), got)
		}
	}
	assert.Equal(t, s3rdma.Stats{Puts: 2, Gets: 2, Declined: 0}, s.moved.Stats())
	metrics := s.scrape()
	for _, line := range []string{`goverbs_s3_transfers_total{op="put"} 2`,
		`goverbs_s3_transfer_bytes_total{op="get"} 200000`,
		`goverbs_s3_declined_total{reason="limit"} 0`, `goverbs_s3_sessions 0`, `goverbs_s3_staged_bytes 0`} {
		assert.Contains(t, metrics, line+"\n")
	}
	assert.Contains(t, s.log.String(), "msg=transferred op=GET target=/bucket/key bytes=100000")
}

// TestDeclines checks the counters of declined transfers.
func TestDeclines(t *testing.T) {
	s := newFixture(t, func(o *Options) { o.Handler.MaxObject = 5000 })
	data := make([]byte, 5001)
	_, err := s.do(http.MethodPut, "/bucket/key", data)
	require.NoError(t, err)
	assert.Equal(t, s3rdma.Stats{Declined: 1}, s.moved.Stats())
	assert.Contains(t, s.scrape(), `goverbs_s3_declined_total{reason="size"} 1`+"\n")
	assert.Contains(t, s.log.String(), "level=INFO msg=declined request=prepare")
	s.server.Close()
	_, err = s.do(http.MethodPut, "/bucket/key", data)
	assert.ErrorContains(t, err, "502")
	assert.Contains(t, s.log.String(), "level=ERROR msg=\"backend failed\"")
	assert.Contains(t, s.scrape(), `goverbs_s3_backend_responses_total{code="502"} 1`+"\n")
}

// TestGrace checks that an interrupted gateway ends after the transfer in progress.
func TestGrace(t *testing.T) {
	s := newFixture(t, nil)
	data := strings.Repeat("x", 100000)
	_, err := s.do(http.MethodPut, "/bucket/key", []byte(data))
	require.NoError(t, err)
	block := make(chan struct{})
	s.backend.mu.Lock()
	s.backend.block = block
	s.backend.mu.Unlock()
	got := make(chan string, 1)
	go func() {
		text, err := s.do(http.MethodGet, "/bucket/key", nil)
		assert.NoError(t, err)
		got <- text
	}()
	require.Eventually(t, func() bool { return s.gateway.handler.Sessions() == 1 }, 10*time.Second, time.Millisecond)
	s.stop()
	select {
	case err := <-s.ended:
		require.Fail(t, "the gateway ended during a transfer", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(block)
	assert.Equal(t, data, <-got)
	assert.EqualValues(t, 1, s.moved.Stats().Gets)
	err = <-s.ended
	assert.NoError(t, err)
	s.ended <- nil
}

// TestOptions checks that errors name the option.
func TestOptions(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	device, err := rdma.OpenOn(fabric, "soft0")
	require.NoError(t, err)
	good := Options{Backend: "http://127.0.0.1:1", Listen: "127.0.0.1:0", Handler: s3rdma.HandlerOptions{Device: device,
		Log: slog.New(slog.DiscardHandler)}}
	for want, change := range map[string]func(*Options){
		"--backend http://HOST:PORT": func(o *Options) { o.Backend = "127.0.0.1:9000/" },
		"not an endpoint":            func(o *Options) { o.Backend = "http://127.0.0.1:9000/path" },
		"--listen HOST:PORT":         func(o *Options) { o.Listen = "nonsense" },
		"--metrics HOST:PORT":        func(o *Options) { o.Metrics = "nonsense" },
		"certificate: open":          func(o *Options) { o.Certificate, o.Key = "missing", "missing" },
		"backend: open":              func(o *Options) { o.BackendCA = "missing" },
		"no certificate in PEM":      func(o *Options) { o.BackendCA = "gateway.go" },
	} {
		o := good
		change(&o)
		_, err := Listen(o)
		assert.ErrorContains(t, err, want)
	}
	assert.NoError(t, device.Close())
	assert.Empty(t, fabric.Resources())
	assert.NoError(t, fabric.Close())
}
