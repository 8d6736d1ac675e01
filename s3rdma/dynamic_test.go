// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
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

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestDynamic transfers objects with dynamic connections. From the first request on, a PUT is one request, and a GET is
// a HEAD and a GET.
func TestDynamic(t *testing.T) {
	var requests atomic.Int64
	p := newPair(t, HandlerOptions{Dynamic: true}, Options{Dynamic: true, Threshold: 1000},
		func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				requests.Add(1)
				return base.RoundTrip(r)
			})
		})
	for i, size := range []int{999, 1, 1000, 1001, 1 << 20, 3<<20 + 1} {
		data := bytesOf(size, uint64(i))
		requests.Store(0)
		p.put("key", data)
		assert.EqualValues(t, 1, requests.Swap(0))
		assert.Equal(t, data, p.get("key"))
		assert.EqualValues(t, 2, requests.Load())
	}
	assert.Equal(t, Stats{Puts: 4, Gets: 4}, p.transport.Stats())
	assert.Equal(t, 2, p.fabric.Resources()["qp"], "one target and one initiator")
	assert.Equal(t, 1, p.fabric.Resources()["srq"])
	assert.Zero(t, p.fabric.Resources()["ah"])
	assert.Zero(t, p.fabric.Resources()["mr"])
	stats := p.handler.Stats()
	assert.EqualValues(t, 4, stats.Puts)
	assert.EqualValues(t, 4<<20+2002, stats.GetBytes)
	assert.Zero(t, stats.Sessions)
	assert.Zero(t, stats.Staged)

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
	assert.Equal(t, bytesOf(3<<20+1, 5)[1000:100000], got)
	assert.EqualValues(t, 5, p.transport.Stats().Gets)
}

// TestDynamicAtOnce: concurrent transfers share targets and initiators.
func TestDynamicAtOnce(t *testing.T) {
	p := newPair(t, HandlerOptions{Dynamic: true}, Options{Dynamic: true, Threshold: 1}, nil)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			key, data := fmt.Sprint(i), bytesOf(5000+i, uint64(i))
			if _, err := p.do(t.Context(), http.MethodPut, key, data); err != nil {
				t.Error(err)
			} else if got, err := p.do(t.Context(), http.MethodGet, key, nil); err != nil {
				t.Error(err)
			} else if string(got) != string(data) {
				t.Error("other bytes")
			}
		})
	}
	all.Wait()
	assert.Equal(t, Stats{Puts: 64, Gets: 64}, p.transport.Stats())
	assert.Zero(t, p.handler.Sessions())
}

// TestDynamicOneSide: if one side does not support dynamic connections, HTTP is used.
func TestDynamicOneSide(t *testing.T) {
	for name, o := range map[string]HandlerOptions{"none": {}, "direct": {Direct: true}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, o, Options{Dynamic: true, Threshold: 1}, nil)
			data := bytesOf(5000, 1)
			p.put("key", data)
			assert.Equal(t, data, p.get("key"))
			assert.Equal(t, Stats{Declined: 2}, p.transport.Stats())
		})
	}
}

// TestDynamicForeign sends a token for a target that does not exist, and then one with a wrong key. The server must
// store nothing.
func TestDynamicForeign(t *testing.T) {
	p := newPair(t, HandlerOptions{Dynamic: true, TransferTimeout: 200 * time.Millisecond}, Options{Threshold: 1}, nil)
	p.store.all["/bucket/key"] = []byte("old")
	target, err := p.transport.engine.newDynamic(true)
	require.NoError(t, err)
	memory, err := p.transport.engine.pool.get(5000)
	require.NoError(t, err)
	copy(memory.Bytes(), bytesOf(5000, 1))
	require.NoError(t, target.register(memory, 5000, ibv.ACCESS_REMOTE_READ))
	own, err := target.token()
	require.NoError(t, err)
	put := func(text string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.server.URL+"/bucket/key", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", credential)
		r.Header.Set(headerToken, text)
		response, err := p.transport.base.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response
	}
	for _, change := range []func(*token){func(o *token) { o.qpn ^= 0x80 }, func(o *token) { o.rkey++ },
		func(o *token) { o.length++ }} {
		other := own
		change(&other)
		response := put(other.dynamicText())
		assert.Equal(t, http.StatusOK, response.StatusCode)
		assert.Equal(t, "501", response.Header.Get(headerReply))
	}
	assert.Equal(t, []byte("old"), p.store.all["/bucket/key"])
	short := own.dynamicText()
	short = short[:len(short)-34] // without the transfer's address and size
	for text, want := range map[string][]byte{
		own.dynamicText():                        bytesOf(5000, 1),
		strings.ToUpper(own.dynamicText()) + ";": bytesOf(5000, 1),
		short:                                    bytesOf(5000, 1),
		fmt.Sprintf("%s:%016x:%016x", short, own.address+7, 100): bytesOf(5000, 1)[7:107],
	} {
		response := put(text)
		assert.Equal(t, "200", response.Header.Get(headerReply), text)
		assert.Equal(t, fmt.Sprint(len(want)), response.Header.Get(headerTransferred))
		assert.Equal(t, want, p.store.all["/bucket/key"])
	}
	require.NoError(t, target.close())
	p.transport.engine.pool.put(memory)
}

// TestDynamicToken compares the text of a token with cuObject's format.
func TestDynamicToken(t *testing.T) {
	own := token{transport: transportDC, qpn: 0x123, rkey: 0x1234, address: 0x7f0000001000, length: 0x100000, port: 1, lid: 5}
	copy(own.gid.Raw()[10:], []byte{0xff, 0xff, 127, 0, 0, 1})
	const text = "00007f0000001000:00100000:00001234:0005:000123:1:00000000000000000000ffff7f000001"
	assert.Equal(t, text+":00007f0000001000:0000000000100000", own.dynamicText())
	for _, s := range []string{text, own.dynamicText()} {
		parsed, err := parseDynamic(s)
		require.NoError(t, err)
		assert.Equal(t, own, parsed)
	}
	parsed, err := parseDynamic(text + ":0000000000000010:0000000000000020")
	require.NoError(t, err)
	assert.Equal(t, own.address+16, parsed.address)
	assert.EqualValues(t, 32, parsed.length)
	for _, s := range []string{
		text + ":00007f0000001000",                  // address without a size
		text + ":00007f0000000fff:0000000000000001", // starts before the region
		text + ":00007f0000001001:0000000000100000", // ends after the region
		text + ":00007f0000001000:ffffffffffffffff",
		text + ":00007f0000001000:0000000000000000",
		strings.Replace(text, ":1:", ":0:", 1), // no GID
		strings.Replace(text, ":000123", ":000000", 1),
		strings.Replace(text, ":00100000", ":00000000", 1),
		strings.Replace(text, ":00100000", ":0100000", 1),
		strings.Replace(text, ":00100000", ":+0100000", 1),
		"ffffffffffffffff" + text[16:],
	} {
		_, err := parseDynamic(s)
		assert.ErrorIs(t, err, errToken, s)
	}
}
