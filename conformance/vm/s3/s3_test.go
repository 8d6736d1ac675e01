// SPDX-License-Identifier: BSD-2-Clause

package s3

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/s3rdma"
)

// store is an S3 server that keeps objects and parts in memory and verifies nothing.
type store struct {
	mu  sync.Mutex
	all map[string][]byte // by path, and for parts by path and query
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch upload := r.URL.Query().Get("uploadId"); {
	case r.Method == http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil || int64(len(data)) != r.ContentLength {
			http.Error(w, "incomplete", http.StatusBadRequest)
			return
		}
		key := r.URL.Path
		if upload != "" {
			key = partKey(key, r.URL.Query().Get("partNumber"))
		}
		s.all[key] = data
		w.Header().Set("ETag", strconv.Quote(sum(data)))
	case r.Method == http.MethodPost && upload != "":
		var complete []byte
		for i := 1; ; i++ {
			key := partKey(r.URL.Path, strconv.Itoa(i))
			part, ok := s.all[key]
			if !ok {
				break
			}
			delete(s.all, key)
			complete = append(complete, part...)
		}
		s.all[r.URL.Path] = complete
	default:
		data, ok := s.all[r.URL.Path]
		if !ok {
			http.Error(w, "no such key", http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", strconv.Quote(sum(data)))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

func partKey(path, number string) string { return path + "?" + number }

// sum returns the SHA-256 of an object.
func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// stored returns the SHA-256 of an object at the server.
func (s *store) stored(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sum(s.all["/bucket/"+key])
}

const (
	threshold  = 64 << 10
	credential = "AWS4-HMAC-SHA256 Credential=AKID/20261128/us-east-1/s3/aws4_request"
)

func open(t testing.TB) *rdma.Device {
	t.Helper()
	d, err := rdma.Open(testbed.DeviceName())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

// server is an S3 server behind a handler.
type server struct {
	*httptest.Server
	store   *store
	handler *s3rdma.Handler
}

func newServer(t testing.TB, o s3rdma.HandlerOptions) *server {
	t.Helper()
	testbed.Kernel(t)
	ignore := goleak.IgnoreCurrent()
	cleanups := goleak.IgnoreAnyFunction("runtime.runCleanups")
	t.Cleanup(func() { goleak.VerifyNone(t, ignore, cleanups) })
	o.Device = open(t)
	s := &server{store: &store{all: map[string][]byte{}}}
	var err error
	s.handler, err = s3rdma.NewHandler(s.store, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.handler.Close()) })
	s.Server = httptest.NewServer(s.handler)
	t.Cleanup(s.Server.Close)
	return s
}

// client is an HTTP client whose objects move by RDMA.
type client struct {
	http      *http.Client
	transport *s3rdma.Transport
	url       string
}

// newClient returns a client whose HTTP requests pass through between, if that is not nil.
func newClient(t testing.TB, url string, o s3rdma.Options, between func(http.RoundTripper) http.RoundTripper) *client {
	t.Helper()
	tcp := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(tcp.CloseIdleConnections)
	base := http.RoundTripper(tcp)
	if between != nil {
		base = between(base)
	}
	o.Device, o.Threshold = open(t), threshold
	o.Signer = s3rdma.SignerFunc(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", credential)
		return nil
	})
	transport, err := s3rdma.NewTransport(base, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, transport.Close()) })
	return &client{&http.Client{Transport: transport}, transport, url + "/bucket/"}
}

func (c *client) do(method, key, ranged string, data []byte) ([]byte, error) {
	r, err := http.NewRequest(method, c.url+key, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", credential)
	want := http.StatusOK
	if ranged != "" {
		r.Header.Set("Range", "bytes="+ranged)
		want = http.StatusPartialContent
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s", method, key, response.Status)
	}
	return io.ReadAll(response.Body)
}

// move puts an object, and gets it back.
func (c *client) move(key string, s *store, data []byte) error {
	if _, err := c.do(http.MethodPut, key, "", data); err != nil {
		return err
	}
	if got, want := s.stored(key), sum(data); got != want {
		return fmt.Errorf("put %s of %d bytes: the server has SHA-256 %s, want %s", key, len(data), got, want)
	}
	got, err := c.do(http.MethodGet, key, "", nil)
	if err == nil && sum(got) != sum(data) {
		err = fmt.Errorf("get %s of %d bytes: %d bytes with SHA-256 %s, want %s", key, len(data), len(got), sum(got),
			sum(data))
	}
	return err
}

// pattern returns size bytes that depend on the seed.
func pattern(size int, seed byte) []byte {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{seed, byte(size)}).Read(data)
	return data
}

// protocols runs a test with each protocol.
func protocols(t *testing.T, f func(t *testing.T, direct bool)) {
	t.Run("hipobj-rc-v2", func(t *testing.T) { f(t, false) })
	t.Run("direct", func(t *testing.T) { f(t, true) })
}

// TestObjects moves objects of sizes around the threshold and the packet size. Only those below the threshold use HTTP,
// and the first request of the direct protocol.
func TestObjects(t *testing.T) {
	protocols(t, func(t *testing.T, direct bool) {
		s := newServer(t, s3rdma.HandlerOptions{Direct: direct})
		c := newClient(t, s.URL, s3rdma.Options{Direct: direct}, nil)
		if direct {
			require.NoError(t, c.move("first", s.store, pattern(threshold, 0)))
		}
		before, large := c.transport.Stats(), uint64(0)
		for i, size := range []int{0, 1, threshold - 1, threshold, threshold + 1, 1<<20 - 4096, 4<<20 + 1} {
			require.NoError(t, c.move(fmt.Sprint(size), s.store, pattern(size, byte(i))))
			if size >= threshold {
				large++
			}
		}
		after := c.transport.Stats()
		assert.Equal(t, large, after.Puts-before.Puts, "puts by RDMA")
		assert.Equal(t, large, after.Gets-before.Gets, "gets by RDMA")
		assert.Equal(t, before.Declined, after.Declined)
		stats := s.handler.Stats()
		assert.Equal(t, after.Puts, stats.Puts)
		assert.Equal(t, after.Gets, stats.Gets)
		assert.Zero(t, stats.Staged)
	})
}

// TestRanges gets ranges of an object.
func TestRanges(t *testing.T) {
	protocols(t, func(t *testing.T, direct bool) {
		s := newServer(t, s3rdma.HandlerOptions{Direct: direct})
		c := newClient(t, s.URL, s3rdma.Options{Direct: direct}, nil)
		data := pattern(1<<20+77, 1)
		require.NoError(t, c.move("key", s.store, data))
		before := c.transport.Stats().Gets
		for ranged, part := range map[string][]byte{
			"0-65535": data[:threshold], "1-65536": data[1 : threshold+1], "100000-": data[100000:],
			"-70001": data[len(data)-70001:], "5000-99999999": data[5000:],
		} {
			got, err := c.do(http.MethodGet, "key", ranged, nil)
			require.NoError(t, err)
			assert.Equal(t, sum(part), sum(got), ranged)
		}
		assert.EqualValues(t, 5, c.transport.Stats().Gets-before, "gets by RDMA")
	})
}

// TestMultipart uploads an object in parts, of which the last one is small, and gets it in one request.
func TestMultipart(t *testing.T) {
	protocols(t, func(t *testing.T, direct bool) {
		s := newServer(t, s3rdma.HandlerOptions{Direct: direct})
		c := newClient(t, s.URL, s3rdma.Options{Direct: direct}, nil)
		require.NoError(t, c.move("first", s.store, pattern(threshold, 0)))
		before := c.transport.Stats()
		const part = 300<<10 + 1
		data := pattern(4*part+1000, 2)
		for i := 0; i*part < len(data); i++ {
			_, err := c.do(http.MethodPut, fmt.Sprintf("key?partNumber=%d&uploadId=u", i+1), "",
				data[i*part:min((i+1)*part, len(data))])
			require.NoError(t, err)
		}
		_, err := c.do(http.MethodPost, "key?uploadId=u", "", nil)
		require.NoError(t, err)
		assert.Equal(t, sum(data), s.store.stored("key"))
		got, err := c.do(http.MethodGet, "key", "", nil)
		require.NoError(t, err)
		assert.Equal(t, sum(data), sum(got))
		after := c.transport.Stats()
		assert.EqualValues(t, 4, after.Puts-before.Puts, "parts by RDMA")
		assert.EqualValues(t, 1, after.Gets-before.Gets)
	})
}

// TestAtOnce moves 64 objects at once.
func TestAtOnce(t *testing.T) {
	protocols(t, func(t *testing.T, direct bool) {
		const objects, patience = 64, 2 * time.Minute // on an emulated processor
		s := newServer(t, s3rdma.HandlerOptions{Direct: direct, SessionLifetime: patience, TransferTimeout: patience})
		c := newClient(t, s.URL, s3rdma.Options{Direct: direct, TransferTimeout: patience}, nil)
		var all sync.WaitGroup
		for i := range objects {
			all.Go(func() {
				if err := c.move(fmt.Sprint(i), s.store, pattern(threshold+i, 1)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		stats := c.transport.Stats()
		t.Logf("%+v; server: %+v", stats, s.handler.Stats())
		assert.EqualValues(t, 2*objects, stats.Puts+stats.Gets+stats.Declined)
		// With the direct protocol, the first request of each queue pair is declined.
		assert.GreaterOrEqual(t, stats.Puts+stats.Gets, uint64(objects)/2)
		if !direct {
			assert.Zero(t, stats.Declined)
		}
		assert.Zero(t, s.handler.Sessions())
	})
}

// envServer has the server's URL for the client process of TestKilled, envStep the step at which it dies.
const (
	envServer = "GOVERBS_S3_SERVER"
	envStep   = "GOVERBS_S3_STEP"
)

// TestKilled kills client processes at steps of a transfer: the server ends the session, the kernel has no queue pair
// and no memory region of it left, and other clients are not affected.
func TestKilled(t *testing.T) {
	if testbed.Kernel(t) == testbed.Soft {
		t.Skip("soft0 is in one process; runs in a guest: make vm WHAT=s3")
	}
	s := newServer(t, s3rdma.HandlerOptions{SessionLifetime: 3 * time.Second, TransferTimeout: 3 * time.Second})
	c := newClient(t, s.URL, s3rdma.Options{}, nil)
	data := pattern(1<<20, 1)
	require.NoError(t, c.move("key", s.store, data))
	before, err := testbed.Resources()
	require.NoError(t, err)
	for _, step := range []string{"PUT prepare", "GET prepare", "PUT ready", "GET ready"} {
		t.Run(step, func(t *testing.T) {
			child := exec.Command(os.Args[0], "-test.run=^TestClientProcess$", "-test.count=1")
			child.Env = append(os.Environ(), envServer+"="+s.URL, envStep+"="+step)
			child.Stderr = os.Stderr
			out, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			line := bufio.NewScanner(out)
			reached := false
			for !reached && line.Scan() {
				reached = line.Text() == step
			}
			assert.True(t, reached, "the client has not reached the step")
			if strings.HasSuffix(step, "prepare") {
				assert.Equal(t, 1, s.handler.Sessions())
			}
			assert.NoError(t, child.Process.Kill())
			assert.ErrorContains(t, child.Wait(), "killed")
			assert.Eventually(t, func() bool { return s.handler.Sessions() == 0 }, 20*time.Second, 10*time.Millisecond)
			assert.Eventually(t, func() bool { left, err := testbed.Leaks(before); return err == nil && left == "" },
				20*time.Second, 10*time.Millisecond, "resources are left")
			assert.NoError(t, c.move("key", s.store, data))
		})
	}
	assert.Zero(t, s.handler.Stats().Staged)
	assert.Zero(t, s.handler.Stats().Discarded)
}

// TestClientProcess is the client process of TestKilled. After the prepare request it waits to be killed, or it is
// killed while it sends the ready request.
func TestClientProcess(t *testing.T) {
	url := os.Getenv(envServer)
	if url == "" {
		t.Skip("is a process of TestKilled")
	}
	step := os.Getenv(envStep)
	method, last, _ := strings.Cut(step, " ")
	c := newClient(t, url, s3rdma.Options{}, func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if path.Base(r.URL.Path) != last {
				return base.RoundTrip(r)
			}
			if last == "ready" {
				fmt.Println(step)
				return base.RoundTrip(r)
			}
			response, err := base.RoundTrip(r)
			fmt.Println(step)
			time.Sleep(time.Minute)
			return response, err
		})
	})
	var data []byte
	if method == http.MethodPut {
		data = pattern(4<<20, 3)
	}
	for { // a kill after the ready request may come late
		if _, err := c.do(method, "key", "", data); err != nil {
			t.Fatal(err)
		}
		if stats := c.transport.Stats(); stats.Declined != 0 {
			t.Fatalf("%+v", stats)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
