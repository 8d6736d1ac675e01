// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDirect transfers objects with the direct protocol. From the second request on, a PUT is one request, and a GET is
// a HEAD and a GET.
func TestDirect(t *testing.T) {
	var requests atomic.Int64
	p := newPair(t, HandlerOptions{Direct: true}, Options{Direct: true, Threshold: 1000},
		func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				requests.Add(1)
				return base.RoundTrip(r)
			})
		})
	for i, size := range []int{1000, 1, 1 << 20, 3<<20 + 1} {
		data := bytesOf(size, uint64(i))
		requests.Store(0)
		p.put("key", data)
		puts := requests.Swap(0)
		assert.Equal(t, data, p.get("key"))
		if i > 0 {
			assert.EqualValues(t, 1, puts)
			assert.EqualValues(t, 2, requests.Load())
		}
	}
	assert.Equal(t, Stats{Puts: 3, Gets: 3}, p.transport.Stats())
	assert.Equal(t, 2, p.fabric.Resources()["qp"], "one lane")
	stats := p.handler.Stats()
	assert.EqualValues(t, 3, stats.Puts)
	assert.EqualValues(t, 4<<20+1001, stats.GetBytes)
	assert.Zero(t, stats.Sessions)
	assert.Zero(t, stats.Staged)

	_, err := p.do(t.Context(), http.MethodGet, "missing", nil)
	assert.ErrorContains(t, err, "Not Found")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.server.URL+"/bucket/key", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", credential)
	r.Header.Set("Range", "bytes=1000-99999")
	response, err := p.client.Do(r)
	require.NoError(t, err)
	got, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusPartialContent, response.StatusCode)
	assert.Equal(t, bytesOf(3<<20+1, 3)[1000:100000], got)
	assert.EqualValues(t, 4, p.transport.Stats().Gets)
}

// TestDirectAtOnce uses more lanes than the server can have.
func TestDirectAtOnce(t *testing.T) {
	p := newPair(t, HandlerOptions{Direct: true, MaxSessions: 4}, Options{Direct: true, Threshold: 1}, nil)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 8 {
				key, data := fmt.Sprint(i), bytesOf(5000+i, uint64(j))
				if _, err := p.do(t.Context(), http.MethodPut, key, data); err != nil {
					t.Error(err)
				} else if got, err := p.do(t.Context(), http.MethodGet, key, nil); err != nil {
					t.Error(err)
				} else if string(got) != string(data) {
					t.Error("other bytes")
				}
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, len(p.handler.lanes), 4)
	assert.Zero(t, p.handler.Sessions())
}

// TestDirectLosses loses requests and replies, with clients and servers that time out.
func TestDirectLosses(t *testing.T) {
	var lose atomic.Int32
	p := newPair(t, HandlerOptions{Direct: true}, Options{Direct: true, Threshold: 1},
		func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				what := int32(0)
				if r.Header.Get(headerToken) != "" {
					what = lose.Swap(0)
				}
				if what == 1 {
					return nil, errors.New("lost")
				}
				response, err := base.RoundTrip(r)
				if what == 2 && err == nil {
					response.Body.Close()
					return nil, errors.New("lost")
				}
				return response, err
			})
		})
	for i := range 4 {
		for what := range int32(3) {
			data := bytesOf(5000, uint64(i)<<2+uint64(what))
			lose.Store(what)
			p.put("key", data)
			lose.Store(what)
			assert.Equal(t, data, p.get("key"))
		}
	}
	assert.Equal(t, Stats{Puts: 4, Gets: 4, Declined: 16}, p.transport.Stats())
}

// TestDirectForeign: a client's queue pair is not connected when it sends its token, as with hipObject. The server
// declines and stores nothing.
func TestDirectForeign(t *testing.T) {
	p := newPair(t, HandlerOptions{Direct: true, TransferTimeout: 300 * time.Millisecond}, Options{Threshold: 1}, nil)
	p.store.all["/bucket/key"] = []byte("old")
	link, err := p.transport.engine.newQueuePair(0)
	require.NoError(t, err)
	own, err := link.token()
	require.NoError(t, err)
	own.length, own.address, own.rkey = 5000, 1<<40, 7
	ask := func(method, token string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, p.server.URL+"/bucket/key", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", credential)
		r.Header.Set(headerToken, token)
		response, err := p.transport.base.RoundTrip(r)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response, string(body)
	}
	for range 3 {
		for _, text := range []string{own.String(), own.String() + ":000000ff00000000:2000;",
			"00007f0000000000:00100000:00001234:0000:000123:1:00000000000000000000ffff7f000001:0000000000000000:0000000000001000",
			strings.Repeat("00", tokenBytes)} {
			response, _ := ask(http.MethodPut, text)
			assert.Equal(t, http.StatusOK, response.StatusCode)
			assert.Equal(t, "501", response.Header.Get(headerReply))
			response, body := ask(http.MethodGet, text)
			assert.Equal(t, "501", response.Header.Get(headerReply))
			assert.Equal(t, "old", body)
		}
	}
	for _, text := range []string{"x", strings.Repeat("11", tokenBytes), own.String() + ":x:1", own.String() + ":1",
		own.String() + ":1:0"} {
		response, _ := ask(http.MethodPut, text)
		assert.Equal(t, http.StatusBadRequest, response.StatusCode, text)
		assert.Empty(t, response.Header.Get(headerReply))
	}
	assert.Zero(t, p.handler.Sessions())
	assert.Equal(t, []byte("old"), p.store.all["/bucket/key"])
	require.NoError(t, link.close())
}

// TestDirectOff: if a server does not support the protocol, a token does not make it store an empty object.
func TestDirectOff(t *testing.T) {
	p := newPair(t, HandlerOptions{}, Options{Direct: true, Threshold: 1}, nil)
	data := bytesOf(5000, 1)
	p.put("key", data)
	assert.Equal(t, data, p.get("key"))
	assert.Equal(t, Stats{Declined: 2}, p.transport.Stats())
}

// FuzzDirect checks that an accepted token describes a queue pair and memory.
func FuzzDirect(f *testing.F) {
	own := token{transport: transportRC, qpn: 0x12, rkey: 3, address: 1 << 60, length: 9, port: 1, lid: 7}.String()
	f.Add(own)
	f.Add(own + ":ff:10;")
	const target = "00007f0000000000:00100000:00001234:0000:000123:1:00000000000000000000ffff7f000001"
	f.Add(target)
	f.Add(target + ":00007f0000000010:0000000000001000;")
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parseDirect(text)
		if err == nil && (parsed.qpn == 0 || parsed.length == 0 || parsed.transport > transportRC) {
			t.Errorf("%q became %v", text, parsed)
		}
	})
}
