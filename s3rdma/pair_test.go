// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// objects is an S3 server that keeps objects in memory and verifies nothing.
type objects struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		data, err := io.ReadAll(r.Body)
		if err != nil || int64(len(data)) != r.ContentLength {
			http.Error(w, "incomplete", http.StatusBadRequest)
			return
		}
		o.mu.Lock()
		o.all[r.URL.Path] = data
		o.mu.Unlock()
		w.Header().Set("ETag", etagOf(data))
		return
	}
	o.mu.Lock()
	data, ok := o.all[r.URL.Path]
	o.mu.Unlock()
	if !ok {
		http.Error(w, "no such key", http.StatusNotFound)
		return
	}
	w.Header().Set("ETag", etagOf(data))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func etagOf(data []byte) string {
	sum := sha256.Sum256(data)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// pair is a client and a server on two software devices, without an SDK. The test fails if any object remains at its
// end.
type pair struct {
	t         testing.TB
	fabric    *soft.Fabric
	store     *objects
	server    *httptest.Server
	handler   *Handler
	serving   atomic.Pointer[Handler] // handler, or its replacement
	transport *Transport
	client    *http.Client
}

const credential = "AWS4-HMAC-SHA256 Credential=AKID/20261128/us-east-1/s3/aws4_request"

func newPair(t testing.TB, h HandlerOptions, o Options, between func(http.RoundTripper) http.RoundTripper) *pair {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	p := &pair{t: t, store: &objects{all: map[string][]byte{}}}
	var err error
	p.fabric, err = soft.New(soft.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.Empty(t, p.fabric.Resources())
		assert.NoError(t, p.fabric.Close())
	})
	open := func(name string) *rdma.Device {
		d, err := rdma.OpenOn(p.fabric, name)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		return d
	}
	h.Device, o.Device = open("soft1"), open("soft0")
	p.handler, err = NewHandler(p.store, h)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.handler.Close()) })
	p.serving.Store(p.handler)
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serving.Load().ServeHTTP(w, r)
	}))
	t.Cleanup(p.server.Close)
	tcp := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(tcp.CloseIdleConnections)
	base := http.RoundTripper(tcp)
	if between != nil {
		base = between(base)
	}
	o.Signer = SignerFunc(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", credential)
		return nil
	})
	p.transport, err = NewTransport(base, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.transport.Close()) })
	p.client = &http.Client{Transport: p.transport}
	return p
}

func (p *pair) do(ctx context.Context, method, key string, data []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, p.server.URL+"/bucket/"+key, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", credential)
	response, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errStatus(response.StatusCode)
	}
	return io.ReadAll(response.Body)
}

type errStatus int

func (e errStatus) Error() string { return http.StatusText(int(e)) }

func (p *pair) put(key string, data []byte) {
	p.t.Helper()
	_, err := p.do(p.t.Context(), http.MethodPut, key, data)
	require.NoError(p.t, err)
}

func (p *pair) get(key string) []byte {
	p.t.Helper()
	data, err := p.do(p.t.Context(), http.MethodGet, key, nil)
	require.NoError(p.t, err)
	return data
}

// everything reports whether tests run at full length. They do not with the race detector, for which make test sets
// GOVERBS_ROUNDS.
func everything() bool {
	return os.Getenv("GOVERBS_EVERYTHING") != "" && os.Getenv("GOVERBS_ROUNDS") == ""
}

// bytesOf returns size bytes that depend on the seed.
func bytesOf(size int, seed uint64) []byte {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(size)}).Read(data)
	return data
}
