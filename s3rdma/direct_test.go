// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
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
				name := int32(0)
				if r.Header.Get(headerToken) != "" {
					name = lose.Swap(0)
				}
				if name == 1 {
					return nil, errors.New("lost")
				}
				response, err := base.RoundTrip(r)
				if name == 2 && err == nil {
					response.Body.Close()
					return nil, errors.New("lost")
				}
				return response, err
			})
		})
	for i := range 4 {
		for desc := range int32(3) {
			data := bytesOf(5000, uint64(i)<<2+uint64(desc))
			lose.Store(desc)
			p.put("key", data)
			lose.Store(desc)
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

// TestDirectOverlap has an S3 server that waits, in the middle of a GET, until the client's memory contains the first
// part of the object.
func TestDirectOverlap(t *testing.T) {
	for name, o := range map[string]Options{"direct": {Direct: true}, "dynamic": {Dynamic: true}} {
		t.Run(name, func(t *testing.T) {
			o.Threshold = 1
			p := newPair(t, HandlerOptions{Direct: o.Direct, Dynamic: o.Dynamic}, o, nil)
			data := bytesOf(3*chunk+1, 1)
			p.put("key", data)
			b, err := NewBuffer(len(data))
			require.NoError(t, err)
			inner := p.store
			p.handler.inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, ok := w.(*recorder); !ok || r.Method != http.MethodGet {
					inner.ServeHTTP(w, r)
					return
				}
				w.Header().Set("ETag", etagOf(data))
				w.Write(data[:chunk])
				assert.Eventually(t, func() bool { return bytes.Equal(b.Bytes()[:chunk], data[:chunk]) }, 10*time.Second,
					time.Millisecond, "nothing was transferred before the end of the object")
				w.Write(data[chunk:])
			})
			got, err := p.do(Into(t.Context(), b), http.MethodGet, "key", nil)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
			require.NoError(t, b.Close())
		})
	}
}

// TestDirectRange reads ranges whose size is known, each with one request. The last one exceeds the object.
func TestDirectRange(t *testing.T) {
	var requests atomic.Int64
	p := newPair(t, HandlerOptions{Direct: true}, Options{Direct: true, Threshold: 1000},
		func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				requests.Add(1)
				return base.RoundTrip(r)
			})
		})
	data := bytesOf(10_000, 1)
	p.put("key", data)
	b, err := NewBuffer(4000)
	require.NoError(t, err)
	for _, into := range []*Buffer{nil, b} {
		for _, from := range []int{0, 3000, 9000} {
			r, err := http.NewRequestWithContext(Into(t.Context(), into), http.MethodGet, p.server.URL+"/bucket/key", nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", credential)
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+2999))
			requests.Store(0)
			response, err := p.client.Do(r)
			require.NoError(t, err)
			want := data[from:min(from+3000, len(data))]
			assert.Equal(t, http.StatusPartialContent, response.StatusCode)
			assert.EqualValues(t, len(want), response.ContentLength)
			assert.Equal(t, strconv.Itoa(len(want)), response.Header.Get("Content-Length"))
			if into == nil {
				got, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				assert.True(t, bytes.Equal(want, got))
			} else {
				n, err := b.ReadFrom(response.Body)
				require.NoError(t, err)
				assert.True(t, bytes.Equal(want, b.Bytes()[:n]))
			}
			require.NoError(t, response.Body.Close())
			assert.EqualValues(t, 1, requests.Load())
		}
	}
	require.NoError(t, b.Close())
	assert.EqualValues(t, 6, p.transport.Stats().Gets)
}

// TestRangeSize has ranges of known and unknown size.
func TestRangeSize(t *testing.T) {
	for header, size := range map[string]int{"bytes=0-0": 1, "bytes=10-109": 100, "bytes=0-2147483646": maxSize,
		"bytes=0-2147483647": 0, "": 0, "bytes=5-": 0, "bytes=-5": 0, "bytes=5-4": 0, "bytes=0-1,3-4": 0,
		"bytes=+1-4": 0, "bits=0-1": 0, "bytes=0-99999999999999999999": 0} {
		assert.Equal(t, size, rangeSize(header), header)
	}
}

// TestDirectRejectedBody has an S3 server that replies to a PUT before it has read the body. The client gets this
// reply, and later requests work.
func TestDirectRejectedBody(t *testing.T) {
	p := newPair(t, HandlerOptions{Direct: true}, Options{Direct: true, Threshold: 1000}, nil)
	data := bytesOf(64*chunk, 1)
	p.put("key", data)
	p.handler.inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var first [1000]byte
		_, err := io.ReadFull(r.Body, first[:])
		assert.NoError(t, err)
		assert.Equal(t, data[:1000], first[:])
		http.Error(w, "quota", http.StatusForbidden)
	})
	_, err := p.do(t.Context(), http.MethodPut, "key", data)
	assert.ErrorContains(t, err, "Forbidden")
	p.handler.inner = p.store
	p.put("key", data)
	assert.True(t, bytes.Equal(data, p.get("key")))
}

// TestDirectPanic has an S3 server that panics in the middle of a transfer.
func TestDirectPanic(t *testing.T) {
	p := newPair(t, HandlerOptions{Direct: true}, Options{Direct: true, Threshold: 1000}, nil)
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	data := bytesOf(3*chunk, 1)
	p.put("key", data)
	p.handler.inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			p.store.ServeHTTP(w, r)
			return
		}
		w.Write(data[:2*chunk])
		panic("in the test")
	})
	_, err := p.do(t.Context(), http.MethodGet, "key", nil)
	assert.Error(t, err)
	p.handler.inner = p.store
	assert.True(t, bytes.Equal(data, p.get("key")))
	assert.Zero(t, p.handler.Sessions())
}
