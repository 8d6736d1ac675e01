// SPDX-License-Identifier: BSD-2-Clause

package sdktest

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
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	miniocredentials "github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/s3rdma"
)

const (
	accessKey = "AKID"
	secretKey = "SECRET"
	region    = "us-east-1"
	bucket    = "bucket"
	threshold = 64 << 10
)

var awsCredentials = aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey}

// signer adapts aws-sdk-go-v2's signer to s3rdma.Signer.
var signer = s3rdma.SignerFunc(func(ctx context.Context, r *http.Request) error {
	return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).SignHTTP(ctx, awsCredentials, r,
		r.Header.Get("X-Amz-Content-Sha256"), "s3", region, time.Now())
})

// testbed is a server and a client on two software devices. The test fails if any object remains at its end.
type testbed struct {
	t         *testing.T
	fabric    *soft.Fabric
	device    *rdma.Device // of the client
	inner     http.Handler // the S3 server, which verifies signatures
	handler   *s3rdma.Handler
	server    *httptest.Server
	base      *http.Transport
	transport *s3rdma.Transport
}

type settings struct {
	handler s3rdma.HandlerOptions
	client  s3rdma.Options
	plain   bool                                      // without s3rdma's handler
	wire    bool                                      // devices that use RoCE v2 over UDP
	around  func(http.Handler) http.Handler           // wraps the handler
	between func(http.RoundTripper) http.RoundTripper // wraps the HTTP transport
	inner   func(http.Handler) http.Handler           // wraps the S3 server
}

func newTestbed(t *testing.T, s settings) *testbed {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	r := &testbed{t: t}
	r.fabric = newFabric(t, soft.Options{})
	open := func(name string) *rdma.Device {
		fabric := r.fabric
		if s.wire { // devices of the same fabric would not exchange packets
			address := map[string]string{"soft0": "127.0.0.61", "soft1": "127.0.0.62"}[name]
			fabric = newFabric(t, soft.Options{Devices: []soft.DeviceOptions{
				{Name: name, Address: netip.MustParseAddr(address), Wire: true}}})
		}
		d, err := rdma.OpenOn(fabric, name)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		return d
	}
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket(bucket))
	r.inner = verify(t, decode(gofakes3.New(backend).Server()))
	if s.inner != nil {
		r.inner = s.inner(r.inner)
	}
	served := r.inner
	if !s.plain {
		s.handler.Device = open("soft1")
		handler, err := s3rdma.NewHandler(r.inner, s.handler)
		r.handler = handler
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, r.handler.Close()) })
		served = r.handler
	}
	if s.around != nil {
		served = s.around(served)
	}
	r.server = httptest.NewServer(served)
	t.Cleanup(r.server.Close)
	r.device = open("soft0")
	s.client.Device = r.device
	if s.client.Signer == nil {
		s.client.Signer = signer
	}
	if s.client.Threshold == 0 {
		s.client.Threshold = threshold
	}
	r.base = &http.Transport{}
	t.Cleanup(r.base.CloseIdleConnections)
	base := http.RoundTripper(r.base)
	if s.between != nil {
		base = s.between(base)
	}
	var err error
	r.transport, err = s3rdma.NewTransport(base, s.client)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.transport.Close()) })
	return r
}

// newFabric creates software devices, and checks at the end of the test that no object remains.
func newFabric(t testing.TB, o soft.Options) *soft.Fabric {
	f, err := soft.New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.Empty(t, f.Resources())
		assert.NoError(t, f.Close())
	})
	return f
}

// aws returns an aws-sdk-go-v2 client. Only its transport differs from the defaults.
func (r *testbed) aws(over http.RoundTripper) *s3.Client {
	return s3.New(s3.Options{BaseEndpoint: &r.server.URL, Region: region, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
		HTTPClient:  &http.Client{Transport: over}, RetryMaxAttempts: 1})
}

// minio returns a minio-go client. Only its transport differs from the defaults.
func (r *testbed) minio(over http.RoundTripper) *minio.Client {
	scheme, host, _ := strings.Cut(r.server.URL, "://")
	c, err := minio.New(host, &minio.Options{Secure: scheme == "https",
		Creds: miniocredentials.NewStaticV4(accessKey, secretKey, ""), Transport: over, Region: region})
	require.NoError(r.t, err)
	return c
}

// store is the interface of both clients for tests.
type store interface {
	put(ctx context.Context, key string, data []byte) error
	get(ctx context.Context, key, rng string) ([]byte, error)
	multipart(ctx context.Context, key string, data []byte) error
}

func (r *testbed) stores(over http.RoundTripper) map[string]store {
	return map[string]store{"aws": awsStore{r.aws(over)}, "minio": minioStore{r.minio(over)}}
}

type awsStore struct{ *s3.Client }

func (c awsStore) put(ctx context.Context, key string, data []byte) error {
	out, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(data),
		Metadata: map[string]string{"length": strconv.Itoa(len(data))}})
	if err == nil && aws.ToString(out.ETag) == "" {
		err = fmt.Errorf("no ETag")
	}
	return err
}

func (c awsStore) get(ctx context.Context, key, rng string) ([]byte, error) {
	in := &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &key}
	if rng != "" {
		in.Range = &rng
	}
	out, err := c.GetObject(ctx, in)
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	data, err := io.ReadAll(out.Body)
	if err == nil && aws.ToInt64(out.ContentLength) != int64(len(data)) {
		err = fmt.Errorf("length %d of %d", aws.ToInt64(out.ContentLength), len(data))
	}
	if length, ok := out.Metadata["length"]; err == nil && ok && rng == "" && length != strconv.Itoa(len(data)) {
		err = fmt.Errorf("metadata has length %s, want %d", length, len(data))
	}
	return data, err
}

func (c awsStore) multipart(ctx context.Context, key string, data []byte) error {
	begun, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: &key})
	if err != nil {
		return err
	}
	var parts []completedPart
	for n := int32(1); len(data) > 0; n++ {
		part := data[:min(len(data), 5<<20)]
		data = data[len(part):]
		out, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: &key, PartNumber: &n,
			UploadId: begun.UploadId, Body: bytes.NewReader(part)})
		if err != nil {
			return err
		}
		parts = append(parts, completedPart{PartNumber: aws.Int32(n), ETag: out.ETag})
	}
	return c.complete(ctx, key, begun.UploadId, parts)
}

type minioStore struct{ *minio.Client }

func (c minioStore) put(ctx context.Context, key string, data []byte) error {
	_, err := c.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{DisableMultipart: true})
	return err
}

func (c minioStore) get(ctx context.Context, key, rng string) ([]byte, error) {
	var o minio.GetObjectOptions
	if rng != "" {
		o.Set("Range", rng)
	}
	body, _, _, err := minio.Core{Client: c.Client}.GetObject(ctx, bucket, key, o)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func (c minioStore) multipart(ctx context.Context, key string, data []byte) error {
	_, err := c.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{PartSize: 5 << 20})
	return err
}

// pattern returns size bytes that depend on the seed.
func pattern(size int, seed uint64) []byte {
	data := make([]byte, size)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(size)
	rand.NewChaCha8(key).Read(data)
	return data
}

func sameBytes(t testing.TB, want, got []byte) {
	t.Helper()
	if sha256.Sum256(want) != sha256.Sum256(got) {
		t.Errorf("got %d bytes, want %d, or contents differ", len(got), len(want))
	}
}

// verify is the part of an S3 server that checks signatures and payload hashes.
func verify(t *testing.T, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		sum := r.Header.Get("X-Amz-Content-Sha256")
		if digest := sha256.Sum256(body); len(sum) == 64 && sum != hex.EncodeToString(digest[:]) {
			http.Error(w, "payload hash", http.StatusBadRequest)
			return
		}
		if r.Context().Value(authenticated{}) == nil && !signed(r) {
			http.Error(w, "SignatureDoesNotMatch", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticated marks a request's context after its signature was verified.
type authenticated struct{}

// signed reports whether a request's signature is correct. Clients format it with different spaces.
func signed(r *http.Request) bool {
	return strings.ReplaceAll(r.Header.Get("Authorization"), " ", "") == strings.ReplaceAll(signature(r), " ", "")
}

// signature returns the correct Authorization header for a request's other headers.
func signature(r *http.Request) string {
	again := r.Clone(context.Background())
	again.URL.Host, again.URL.Scheme = r.Host, "http"
	_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	signed, _, _ = strings.Cut(signed, ",")
	names := strings.Split(signed, ";")
	again.Header = http.Header{}
	again.ContentLength = 0
	for _, name := range names {
		if name == "content-length" {
			again.ContentLength = r.ContentLength
		} else if name != "host" {
			again.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	date, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return "no date"
	}
	err = v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).SignHTTP(context.Background(),
		awsCredentials, again, r.Header.Get("X-Amz-Content-Sha256"), "s3", region, date)
	if err != nil {
		return err.Error()
	}
	return again.Header.Get("Authorization")
}

// decode removes the framing of aws-chunked bodies, which gofakes3 does not do for parts and trailers.
func decode(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
			from, to := bufio.NewReader(r.Body), new(bytes.Buffer)
			for {
				line, err := from.ReadString('\n')
				digits, _, _ := strings.Cut(strings.TrimSpace(line), ";")
				n, bad := strconv.ParseInt(digits, 16, 64)
				if err != nil || bad != nil {
					http.Error(w, "framing", http.StatusBadRequest)
					return
				}
				if n == 0 {
					break
				}
				io.CopyN(to, from, n)
				from.Discard(2)
			}
			if r.Header.Get("X-Amz-Decoded-Content-Length") != strconv.Itoa(to.Len()) {
				http.Error(w, "decoded length", http.StatusBadRequest)
				return
			}
			r = r.Clone(r.Context())
			r.Body, r.ContentLength = io.NopCloser(to), int64(to.Len())
			r.Header.Set("Content-Length", strconv.Itoa(to.Len()))
			r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
			r.Header.Del("Content-Encoding")
		}
		next.ServeHTTP(w, r)
	})
}
