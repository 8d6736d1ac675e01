// SPDX-License-Identifier: BSD-2-Clause

package sdktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/s3rdma"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// onReply changes the responses to requests of one kind: HEAD, or the last element of a control path.
func onReply(kind string, change func(*http.Response) error) func(http.RoundTripper) http.RoundTripper {
	return func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := base.RoundTrip(r)
			if err == nil && (r.Method == kind || strings.HasSuffix(r.URL.Path, "/.hipobj-rc/"+kind)) {
				if err = change(response); err != nil {
					response.Body.Close()
					return nil, err
				}
			}
			return response, err
		})
	}
}

func status(code int) func(*http.Response) error {
	return func(r *http.Response) error { r.StatusCode = code; return nil }
}

func set(name, value string) func(*http.Response) error {
	return func(r *http.Response) error { r.Header.Set(name, value); return nil }
}

// TestFallback makes each step fail in each way. The data must be correct, and no object may remain.
func TestFallback(t *testing.T) {
	lost := func(*http.Response) error { return errors.New("connection reset") }
	for _, failure := range []struct {
		kind, name string
		change     func(*http.Response) error
	}{
		{"HEAD", "lost", lost},
		{"HEAD", "403", status(403)},
		{"HEAD", "another ETag", set("ETag", `"other"`)},
		{"prepare", "lost", lost},
		{"prepare", "400", status(400)},
		{"prepare", "404", status(404)},
		{"prepare", "409", status(409)},
		{"prepare", "413", status(413)},
		{"prepare", "501", status(501)},
		{"prepare", "503", status(503)},
		{"prepare", "no protocol", set("X-Amz-Rdma-Protocol", "")},
		{"prepare", "other protocol", set("X-Amz-Rdma-Protocol", "hipobj-rc-v3")},
		{"prepare", "no replay", set("X-Goverbs-Replay", "")},
		{"prepare", "no reply", set("X-Amz-Rdma-Reply", "")},
		{"prepare", "501 in the reply", set("X-Amz-Rdma-Reply", "501")},
		{"prepare", "no token", set("X-Amz-Rdma-Reply", "200:")},
		{"prepare", "token of another transport", set("X-Amz-Rdma-Reply", "200:00"+strings.Repeat("11", 43))},
		{"prepare", "no queue pair", set("X-Amz-Rdma-Qpn", "")},
		{"prepare", "wrong queue pair", set("X-Amz-Rdma-Qpn", "fffff0")},
		{"prepare", "wrong PSN", set("X-Amz-Rdma-Psn", "1234567")},
		{"prepare", "no key", set("X-Amz-Rdma-Mr-Rkey", "")},
		{"prepare", "wrong session", set("X-Amz-Rdma-Session", strings.Repeat("0", 32))},
		{"ready", "lost", lost},
		{"ready", "403", status(403)},
		{"ready", "408", status(408)},
		{"ready", "409", status(409)},
		{"ready", "500", status(500)},
		{"ready", "no protocol", set("X-Amz-Rdma-Protocol", "")},
		{"ready", "wrong cookie", set("X-Amz-Rdma-Cookie", "00000000")},
		{"ready", "fewer bytes", set("X-Amz-Rdma-Bytes-Transferred", "1")},
		{"ready", "no bytes", set("X-Amz-Rdma-Bytes-Transferred", "")},
	} {
		t.Run(failure.kind+" "+failure.name, func(t *testing.T) {
			r := newTestbed(t, settings{between: onReply(failure.kind, failure.change),
				client:  s3rdma.Options{TransferTimeout: 300 * time.Millisecond},
				handler: s3rdma.HandlerOptions{SessionLifetime: 200 * time.Millisecond, TransferTimeout: 300 * time.Millisecond}})
			for name, c := range r.stores(r.transport) {
				data := pattern(threshold+1, 1)
				require.NoError(t, c.put(t.Context(), name, data))
				got, err := c.get(t.Context(), name, "")
				require.NoError(t, err)
				sameBytes(t, data, got)
			}
			assert.Positive(t, r.transport.Stats().Declined)
			assert.Zero(t, r.transport.Stats().Gets)
			assert.Eventually(t, func() bool { return r.handler.Sessions() == 0 }, 5*time.Second, 5*time.Millisecond)
		})
	}
}

// TestServerRejects checks that the S3 server's own errors are returned, and that HTTP is used when a limit is reached.
func TestServerRejects(t *testing.T) {
	t.Run("no such key", func(t *testing.T) {
		r := newTestbed(t, settings{})
		want := map[string]string{"aws": "NoSuchKey", "minio": "key does not exist"}
		for name, c := range r.stores(r.transport) {
			_, err := c.get(t.Context(), "missing", "")
			assert.ErrorContains(t, err, want[name])
		}
	})
	t.Run("denied", func(t *testing.T) {
		r := newTestbed(t, settings{inner: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
					return
				}
				next.ServeHTTP(w, r)
			})
		}})
		for _, c := range r.stores(r.transport) {
			assert.Regexp(t, "Access ?Denied", c.put(t.Context(), "denied", pattern(threshold, 1)))
		}
	})
	for name, o := range map[string]s3rdma.HandlerOptions{
		"object": {MaxObject: threshold - 1}, "staged": {MaxStaged: threshold - 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestbed(t, settings{handler: o})
			data := pattern(threshold, 1)
			for _, c := range r.stores(r.transport) {
				require.NoError(t, c.put(t.Context(), "limit", data))
				got, err := c.get(t.Context(), "limit", "")
				require.NoError(t, err)
				sameBytes(t, data, got)
			}
			assert.Equal(t, s3rdma.Stats{Declined: 4}, r.transport.Stats())
		})
	}
}

// TestWrongSignature: the S3 server rejects the replayed request of a client with a wrong key.
func TestWrongSignature(t *testing.T) {
	r := newTestbed(t, settings{between: func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			const name = "X-Goverbs-Original-Authorization"
			if a := r.Header.Get(name); a != "" {
				r.Header.Set(name, a[:len(a)-4]+"0000")
			}
			return base.RoundTrip(r)
		})
	}})
	c := awsStore{r.aws(r.transport)}
	data := pattern(threshold, 1)
	require.NoError(t, c.put(t.Context(), "key", data)) // by HTTP, with the right signature
	got, err := c.get(t.Context(), "key", "")
	require.NoError(t, err)
	sameBytes(t, data, got)
	assert.Equal(t, s3rdma.Stats{Declined: 2}, r.transport.Stats())
}

// TestAbort cancels requests during each step of the server.
func TestAbort(t *testing.T) {
	for _, kind := range []string{"prepare", "ready"} {
		t.Run(kind, func(t *testing.T) {
			var cancel atomic.Pointer[context.CancelFunc]
			r := newTestbed(t, settings{between: onReply(kind, func(*http.Response) error {
				if f := cancel.Load(); f != nil {
					(*f)()
				}
				return nil
			})})
			c := awsStore{r.aws(r.transport)}
			require.NoError(t, c.put(t.Context(), "abort", pattern(1<<20, 1)))
			for _, do := range []func(context.Context) error{
				func(ctx context.Context) error { return c.put(ctx, "abort", pattern(1<<20, 2)) },
				func(ctx context.Context) error { _, err := c.get(ctx, "abort", ""); return err },
			} {
				ctx, f := context.WithCancel(t.Context())
				cancel.Store(&f)
				err := do(ctx)
				if kind == "prepare" {
					assert.ErrorIs(t, err, context.Canceled)
				}
				f()
				cancel.Store(nil)
			}
			assert.Eventually(t, func() bool { return r.handler.Sessions() == 0 }, 5*time.Second, 5*time.Millisecond)
		})
	}
}

// TestLostLink cuts the link between the devices during transfers, so that writes of either side fail.
func TestLostLink(t *testing.T) {
	var fabric atomic.Pointer[soft.Fabric]
	r := newTestbed(t, settings{
		client:  s3rdma.Options{TransferTimeout: time.Second},
		handler: s3rdma.HandlerOptions{TransferTimeout: 500 * time.Millisecond},
		between: onReply("prepare", func(*http.Response) error {
			if f := fabric.Load(); f != nil {
				f.SetLink("soft1", false)
			}
			return nil
		})})
	c := awsStore{r.aws(r.transport)}
	data := pattern(1<<20, 1)
	for range 2 {
		require.NoError(t, c.put(t.Context(), "link", data))
		got, err := c.get(t.Context(), "link", "")
		require.NoError(t, err)
		sameBytes(t, data, got)
		fabric.Store(r.fabric)
	}
	assert.Equal(t, s3rdma.Stats{Puts: 1, Gets: 1, Declined: 2}, r.transport.Stats())
	assert.Eventually(t, func() bool { return r.handler.Sessions() == 0 }, 5*time.Second, 5*time.Millisecond)
}

// TestServerPanics: the S3 server aborts its response, like a reverse proxy that fails to copy a body.
func TestServerPanics(t *testing.T) {
	var abort atomic.Bool
	r := newTestbed(t, settings{inner: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && abort.Swap(false) {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}})
	c := awsStore{r.aws(r.transport)}
	data := pattern(threshold, 1)
	require.NoError(t, c.put(t.Context(), "abort", data))
	abort.Store(true)
	got, err := c.get(t.Context(), "abort", "")
	require.NoError(t, err)
	sameBytes(t, data, got)
	assert.False(t, abort.Load())
	assert.Zero(t, r.handler.Sessions())
}

// TestBodyEndsEarly: a request's body ends early or fails.
func TestBodyEndsEarly(t *testing.T) {
	r := newTestbed(t, settings{})
	c := r.aws(r.transport)
	_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("short"),
		Body: io.LimitReader(zeros{}, threshold), ContentLength: aws.Int64(2 * threshold)},
		func(o *s3.Options) {
			o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		})
	assert.Error(t, err)
	assert.Eventually(t, func() bool { return r.handler.Sessions() == 0 }, 5*time.Second, 5*time.Millisecond)
	_, err = awsStore{c}.get(t.Context(), "short", "")
	assert.Error(t, err)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// control sends a control request as another implementation would.
func control(t *testing.T, r *testbed, path string, header map[string]string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.server.URL+"/.hipobj-rc/"+path, http.NoBody)
	require.NoError(t, err)
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := r.base.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response
}

// TestControl sends malformed and misplaced control requests.
func TestControl(t *testing.T) {
	trust := func(_, replay *http.Request) (*http.Request, error) {
		if replay == nil {
			return nil, nil
		}
		return replay.WithContext(context.WithValue(replay.Context(), authenticated{}, true)), nil
	}
	r := newTestbed(t, settings{handler: s3rdma.HandlerOptions{MaxSessions: 2, SessionLifetime: 100 * time.Millisecond,
		Authorize: trust}})
	good := func(changes ...string) map[string]string {
		h := map[string]string{"x-amz-rdma-protocol": "hipobj-rc-v2", "x-amz-rdma-op": "PUT",
			"x-amz-rdma-target": "/bucket/key", "x-amz-rdma-size": "100", "x-amz-rdma-offset": "0",
			"x-amz-rdma-token": strings.Repeat("0", 88), "x-amz-rdma-psn": "000001", "x-amz-rdma-cookie": "00000001"}
		for i := 0; i < len(changes); i += 2 {
			h["x-amz-rdma-"+changes[i]] = changes[i+1]
		}
		return h
	}
	for name, values := range map[string][]string{
		"op":     {"", "DELETE", "get"},
		"target": {"", "bucket/key", "/", "//host/key", "http://host/key"},
		"size":   {"", "0", "-1", "+1", "2147483648", "1e3", "0x10", "99999999999999999999"},
		"offset": {"", "-1", "9223372036854775807"},
		"token":  {"", "00", strings.Repeat("0", 87), strings.Repeat("0", 90), strings.Repeat("g", 88), strings.Repeat("f", 88)},
		"psn":    {"", "0", "000000", "1000000", "0x0001"},
		"cookie": {"", "00000000", "100000000", "-0000001"},
	} {
		for _, value := range values {
			assert.Equal(t, 400, control(t, r, "prepare", good(name, value)).StatusCode, "%s %q", name, value)
		}
	}
	dynamic := control(t, r, "prepare", good("token", "00"+strings.Repeat("11", 43)))
	assert.Equal(t, 501, dynamic.StatusCode, "a client with dynamic connections")
	assert.Equal(t, "unsupported", dynamic.Header.Get("x-amz-rdma-protocol-status"))
	for _, path := range []string{"prepare", "ready", "cancel"} {
		unknown := control(t, r, path, good("protocol", "hipobj-rc-v1"))
		assert.Equal(t, 501, unknown.StatusCode)
		assert.Equal(t, "unsupported", unknown.Header.Get("x-amz-rdma-protocol-status"))
	}
	first, second := control(t, r, "prepare", good()), control(t, r, "prepare", good())
	assert.Equal(t, 200, first.StatusCode)
	assert.Equal(t, 200, second.StatusCode)
	assert.Equal(t, 503, control(t, r, "prepare", good()).StatusCode)
	ready := func(session string, changes ...string) int {
		return control(t, r, "ready", good(append([]string{"session", session, "qpn", "000001", "mr-addr", "0", "mr-rkey",
			"0"}, changes...)...)).StatusCode
	}
	session := first.Header.Get("x-amz-rdma-session")
	assert.Len(t, session, 32)
	assert.Equal(t, 400, ready(session, "qpn", "1000000"))
	assert.Equal(t, 400, ready(session, "mr-rkey", ""))
	assert.Equal(t, 403, ready(session, "cookie", "00000002"))
	assert.Equal(t, 409, ready(strings.Repeat("0", 32)))
	foreign := good("session", session)
	foreign["Authorization"] = "AWS4-HMAC-SHA256 Credential=OTHER/20261128/us-east-1/s3/aws4_request"
	assert.Equal(t, 204, control(t, r, "cancel", foreign).StatusCode)
	assert.Equal(t, 2, r.handler.Sessions())
	for range 2 {
		assert.Equal(t, 204, control(t, r, "cancel", good("session", session)).StatusCode)
	}
	assert.Equal(t, 1, r.handler.Sessions())
	assert.Equal(t, 409, ready(session))
	assert.Eventually(t, func() bool { return r.handler.Sessions() == 0 }, 5*time.Second, 5*time.Millisecond)
	assert.Equal(t, 409, ready(second.Header.Get("x-amz-rdma-session")))
	assert.Equal(t, 404, control(t, r, "prepare", good("op", "GET")).StatusCode)
	assert.Zero(t, r.handler.Sessions())
}

// TestForeign disables the extension on one side, as with other implementations: RDMA is used for requests whose
// headers do not matter, and stores them under the right key.
func TestForeign(t *testing.T) {
	authorize := func(control, replay *http.Request) (*http.Request, error) {
		if !signed(control) {
			return nil, errors.New("wrong signature")
		}
		if replay == nil {
			return nil, nil
		}
		return replay.WithContext(context.WithValue(replay.Context(), authenticated{}, true)), nil
	}
	sign := s3rdma.SignerFunc(func(ctx context.Context, r *http.Request) error {
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Goverbs-") {
				delete(r.Header, name)
			}
		}
		return signer(ctx, r)
	})
	r := newTestbed(t, settings{client: s3rdma.Options{Foreign: true, Signer: sign},
		handler: s3rdma.HandlerOptions{Authorize: authorize}, between: onReply("prepare", set("X-Goverbs-Replay", ""))})
	c, data := awsStore{r.aws(r.transport)}, pattern(1<<20, 1)
	_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("a key"),
		Body: bytes.NewReader(data)})
	require.NoError(t, err)
	got, err := c.get(t.Context(), "a key", "")
	require.NoError(t, err)
	sameBytes(t, data, got)
	got, err = c.get(t.Context(), "a key", "bytes=1000-900000")
	require.NoError(t, err)
	sameBytes(t, data[1000:900001], got)
	assert.Equal(t, s3rdma.Stats{Puts: 1, Gets: 2}, r.transport.Stats())
	require.NoError(t, c.put(t.Context(), "metadata", data)) // get compares the metadata
	_, err = c.get(t.Context(), "metadata", "")
	require.NoError(t, err)
	require.NoError(t, r.minio(r.transport).RemoveObject(t.Context(), bucket, "metadata", minio.RemoveObjectOptions{}))
	require.NoError(t, c.multipart(t.Context(), "parts", pattern(6<<20, 1)))
	assert.Equal(t, s3rdma.Stats{Puts: 1, Gets: 3, Declined: 3}, r.transport.Stats())
}

// TestSlow has a client that starts a prepared transfer too late: the server has forgotten it, and HTTP moves the object.
func TestSlow(t *testing.T) {
	var slow atomic.Bool
	r := newTestbed(t, settings{handler: s3rdma.HandlerOptions{SessionLifetime: 50 * time.Millisecond},
		between: func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if slow.Load() && strings.HasSuffix(r.URL.Path, "/ready") {
					time.Sleep(300 * time.Millisecond)
				}
				return base.RoundTrip(r)
			})
		}})
	for name, c := range r.stores(r.transport) {
		for i, is := range []bool{true, false} {
			slow.Store(is)
			before, data := r.transport.Stats(), pattern(threshold+i, uint64(i))
			require.NoError(t, c.put(t.Context(), name, data))
			got, err := c.get(t.Context(), name, "")
			require.NoError(t, err)
			sameBytes(t, data, got)
			if is {
				assert.Equal(t, before.Declined+2, r.transport.Stats().Declined)
			}
		}
	}
	assert.EqualValues(t, 4, r.handler.Stats().Expired)
	assert.Zero(t, r.handler.Sessions())
}

// TestRetry has an S3 server that asks for another try, which the SDKs make. It moves by RDMA.
func TestRetry(t *testing.T) {
	var refuse atomic.Int32
	r := newTestbed(t, settings{inner: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodHead && refuse.Add(-1) >= 0 {
				http.Error(w, "<Error><Code>SlowDown</Code></Error>", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	client := r.aws(r.transport)
	client = s3.New(client.Options(), func(o *s3.Options) { o.RetryMaxAttempts = 5 })
	for name, c := range map[string]store{"aws": awsStore{client}, "minio": minioStore{r.minio(r.transport)}} {
		data := pattern(threshold+7, 1)
		for _, n := range []int32{1, 2} { // by RDMA, then also by HTTP
			refuse.Store(n)
			require.NoError(t, c.put(t.Context(), name, data))
			refuse.Store(n)
			got, err := c.get(t.Context(), name, "")
			require.NoError(t, err)
			sameBytes(t, data, got)
		}
	}
	stats := r.transport.Stats()
	assert.Positive(t, stats.Puts)
	assert.Zero(t, r.handler.Sessions())
}

// TestPerClient tests the limit of transfers of an access key.
func TestPerClient(t *testing.T) {
	r := newTestbed(t, settings{handler: s3rdma.HandlerOptions{MaxSessionsPerClient: 1}})
	prepare := func(key string) int {
		return control(t, r, "prepare", map[string]string{"x-amz-rdma-protocol": "hipobj-rc-v2", "x-amz-rdma-op": "PUT",
			"x-amz-rdma-target": "/bucket/key", "x-amz-rdma-size": "100", "x-amz-rdma-offset": "0",
			"x-amz-rdma-token": strings.Repeat("0", 88), "x-amz-rdma-psn": "000001", "x-amz-rdma-cookie": "00000001",
			"Authorization": fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/20261128/us-east-1/s3/aws4_request", key),
		}).StatusCode
	}
	assert.Equal(t, 200, prepare("A"))
	assert.Equal(t, 503, prepare("A"))
	assert.Equal(t, 200, prepare("B"))
}
