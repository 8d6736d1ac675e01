// SPDX-License-Identifier: BSD-2-Clause

package sdktest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/s3rdma"
)

// built is the directory of the command after it was built.
var built string

// command builds goverbs, once.
var command = sync.OnceValues(func() (file string, err error) {
	if built, err = os.MkdirTemp("", "goverbs"); err != nil {
		return "", err
	}
	file = filepath.Join(built, "goverbs")
	build := exec.Command("go", "build", "-o", file, "./cmd/goverbs")
	build.Dir, build.Env, build.Stderr = "../..", append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	return file, build.Run()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// front is a gateway process in front of a server that verifies signatures, with a client in this process.
type front struct {
	*testbed
	listen, metrics string
	args            []string
	process         *exec.Cmd
	log             *bytes.Buffer // read it after the process has ended
}

// newFront starts a gateway with options. between, if not nil, wraps the HTTP transport of the client's transport.
func newFront(t *testing.T, secure bool, between func(http.RoundTripper) http.RoundTripper, args ...string) *front {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	f := &front{testbed: &testbed{t: t}, listen: freeAddress(t), metrics: freeAddress(t)}
	objects := s3mem.New()
	require.NoError(t, objects.CreateBucket(bucket))
	backend := httptest.NewUnstartedServer(verify(t, decode(gofakes3.New(objects).Server())))
	if secure {
		backend.StartTLS()
	} else {
		backend.Start()
	}
	t.Cleanup(backend.Close)
	f.args = append([]string{"s3", "--backend", backend.URL, "-d", "soft@127.0.0.64", "--listen", f.listen, "--metrics",
		f.metrics, "-v"}, args...)
	f.server = &httptest.Server{URL: "http://" + f.listen}
	f.base = &http.Transport{}
	if secure {
		dir := t.TempDir()
		ca := filepath.Join(dir, "ca.pem")
		writePEM(t, ca, "CERTIFICATE", backend.Certificate().Raw)
		certificate, key := selfSigned(t, dir)
		f.args = append(f.args, "--backend-ca", ca, "--tls-cert", certificate, "--tls-key", key)
		f.server.URL = "https://" + f.listen
		text, err := os.ReadFile(certificate)
		require.NoError(t, err)
		trusted := x509.NewCertPool()
		require.True(t, trusted.AppendCertsFromPEM(text))
		f.base.TLSClientConfig = &tls.Config{RootCAs: trusted}
	}
	t.Cleanup(f.base.CloseIdleConnections)
	f.start()
	t.Cleanup(f.kill)
	f.fabric = newFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Name: "soft0",
		Address: netip.MustParseAddr("127.0.0.61"), Wire: true}}})
	device, err := rdma.OpenOn(f.fabric, "soft0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, device.Close()) })
	base := http.RoundTripper(f.base)
	if between != nil {
		base = between(base)
	}
	f.transport, err = s3rdma.NewTransport(base, s3rdma.Options{Device: device, Signer: signer, Threshold: threshold,
		TransferTimeout: 5 * time.Second, RetryAfter: time.Millisecond, Dynamic: slices.Contains(args, "--dynamic")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.transport.Close()) })
	return f
}

// start starts the gateway and waits until it serves requests.
func (f *front) start() {
	file, err := command()
	require.NoError(f.t, err)
	f.log = new(bytes.Buffer)
	f.process = exec.Command(file, f.args...)
	f.process.Stdout, f.process.Stderr = f.log, f.log
	require.NoError(f.t, f.process.Start())
	require.Eventually(f.t, func() bool { return f.metric("") != "" }, 30*time.Second, 10*time.Millisecond)
}

func (f *front) kill() {
	if f.process.ProcessState == nil {
		f.process.Process.Kill()
		f.process.Wait()
	}
	if f.t.Failed() {
		f.t.Logf("gateway:\n%s", f.log)
	}
}

// interrupt stops the gateway like a service manager, and checks that it succeeds.
func (f *front) interrupt() {
	f.t.Helper()
	require.NoError(f.t, f.process.Process.Signal(syscall.SIGTERM))
	assert.NoError(f.t, f.process.Wait())
}

// metric returns the metrics line that begins with name, or "".
func (f *front) metric(name string) string {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := c.Get("http://" + f.metrics + "/metrics")
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(name)) {
			return string(bytes.TrimSpace(line))
		}
	}
	return ""
}

// settled waits until the gateway has no sessions.
func (f *front) settled() {
	f.t.Helper()
	assert.Eventually(f.t, func() bool { return f.metric("goverbs_s3_sessions ") == "goverbs_s3_sessions 0" },
		15*time.Second, 20*time.Millisecond)
}

// freeAddress returns an address that is currently free.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// selfSigned creates a certificate for 127.0.0.1.
func selfSigned(t *testing.T, dir string) (certificate, key string) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	require.NoError(t, err)
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, certificate, "CERTIFICATE", der)
	writePEM(t, key, "PRIVATE KEY", private)
	return certificate, key
}

// TestGateway transfers objects of both clients by RDMA through the gateway, with and without TLS, and checks that the
// S3 server's errors are returned.
func TestGateway(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, secure, nil)
			for name, c := range f.stores(f.transport) {
				before := f.transport.Stats()
				for i, size := range []int{0, 1, threshold, 3<<20 + 7} {
					data := pattern(size, uint64(i))
					require.NoError(t, c.put(t.Context(), "dir/an object+"+name, data), size)
					got, err := c.get(t.Context(), "dir/an object+"+name, "")
					require.NoError(t, err, size)
					sameBytes(t, data, got)
				}
				data := pattern(3<<20+7, 3)
				got, err := c.get(t.Context(), "dir/an object+"+name, "bytes=1000-900000")
				require.NoError(t, err)
				sameBytes(t, data[1000:900001], got)
				parts := pattern(12<<20+5, 9)
				require.NoError(t, c.multipart(t.Context(), "parts", parts))
				got, err = c.get(t.Context(), "parts", "")
				require.NoError(t, err)
				sameBytes(t, parts, got)
				after := f.transport.Stats()
				assert.Equal(t, s3rdma.Stats{Puts: before.Puts + 5, Gets: before.Gets + 4, Declined: before.Declined}, after, name)
				_, err = c.get(t.Context(), "missing", "")
				assert.Error(t, err)
			}
			assert.Equal(t, `goverbs_s3_transfers_total{op="put"} 10`, f.metric(`goverbs_s3_transfers_total{op="put"}`))
			f.settled()
			f.interrupt()
			assert.Contains(t, f.log.String(), "msg=transferred op=PUT")
		})
	}
}

// cuObjectToken is the format of cuObject's tokens, with the transfer's address and size.
var cuObjectToken = regexp.MustCompile(
	`^([0-9a-f]{16}):[0-9a-f]{8}:([0-9a-f]{8}):[0-9a-f]{4}:([0-9a-f]{6}):1:[0-9a-f]{32}:[0-9a-f]{16}:[0-9a-f]{16}$`)

// TestGatewayDynamic moves objects through a gateway by cuObject's tokens, of which a client may change one after it has
// signed the request, and while the gateway is replaced.
func TestGatewayDynamic(t *testing.T) {
	var change func([]string) // a field of the next token
	tokens := 0
	f := newFront(t, false, func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if text := r.Header.Get("X-Amz-Rdma-Token"); text != "" {
				tokens++
				assert.Regexp(t, cuObjectToken, text)
				if change != nil {
					fields := strings.Split(text, ":")
					change(fields)
					r.Header.Set("X-Amz-Rdma-Token", strings.Join(fields, ":"))
					require.NoError(t, signer(r.Context(), r))
					change = nil
				}
			}
			return base.RoundTrip(r)
		})
	}, "--dynamic", "--transfer-timeout=2s")
	for name, c := range f.stores(f.transport) {
		for i, size := range []int{1, threshold, 3<<20 + 7} {
			data := pattern(size, uint64(i))
			require.NoError(t, c.put(t.Context(), name, data))
			got, err := c.get(t.Context(), name, "")
			require.NoError(t, err)
			sameBytes(t, data, got)
		}
	}
	// minio-go signs the chunks of its bodies over HTTP, so that its PUTs use HTTP.
	assert.Equal(t, s3rdma.Stats{Puts: 2, Gets: 4}, f.transport.Stats())
	assert.Equal(t, 6, tokens)
	assert.Equal(t, `goverbs_s3_transfers_total{op="get"} 4`, f.metric(`goverbs_s3_transfers_total{op="get"}`))

	// Tokens of memory or a target that does not exist: HTTP moves the object.
	c, data := awsStore{f.aws(f.transport)}, pattern(1<<20, 9)
	for field, value := range map[int]string{2: "00000001", 4: "0fffff"} {
		before := f.transport.Stats()
		change = func(fields []string) { fields[field] = value }
		require.NoError(t, c.put(t.Context(), "forged", data))
		change = func(fields []string) { fields[field] = value }
		got, err := c.get(t.Context(), "forged", "")
		require.NoError(t, err)
		sameBytes(t, data, got)
		assert.Equal(t, before.Declined+2, f.transport.Stats().Declined)
	}
	f.settled()
	f.interrupt()
	f.start()
	before := f.transport.Stats()
	require.NoError(t, c.put(t.Context(), "again", data))
	got, err := c.get(t.Context(), "again", "")
	require.NoError(t, err)
	sameBytes(t, data, got)
	assert.Equal(t, s3rdma.Stats{Puts: before.Puts + 1, Gets: before.Gets + 1, Declined: before.Declined},
		f.transport.Stats())
	f.settled()
	f.interrupt()
}

// TestGatewayVerifies has clients with a wrong key: the S3 server behind the gateway rejects them.
func TestGatewayVerifies(t *testing.T) {
	f := newFront(t, false, func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			for _, name := range []string{"Authorization", "X-Goverbs-Original-Authorization"} {
				if a := r.Header.Get(name); a != "" {
					r.Header.Set(name, a[:len(a)-4]+"0000")
				}
			}
			return base.RoundTrip(r)
		})
	})
	for name, c := range f.stores(f.transport) {
		assert.Error(t, c.put(t.Context(), name, pattern(threshold, 1)))
	}
	assert.Zero(t, f.transport.Stats().Puts)
	f.settled()
}

// TestGatewayAbort cancels requests during each step of the protocol. The gateway must end their sessions.
func TestGatewayAbort(t *testing.T) {
	var cancel context.CancelFunc
	step := ""
	f := newFront(t, false, func(base http.RoundTripper) http.RoundTripper {
		return onReply("prepare", func(*http.Response) error {
			if step == "prepare" {
				cancel()
			}
			return nil
		})(onReply("ready", func(*http.Response) error {
			if step == "ready" {
				cancel()
			}
			return nil
		})(base))
	}, "--session-lifetime=2s")
	c := awsStore{f.aws(f.transport)}
	data := pattern(1<<20, 1)
	require.NoError(t, c.put(t.Context(), "abort", data))
	for _, s := range []string{"prepare", "ready"} {
		for range 3 {
			var ctx context.Context
			ctx, cancel = context.WithCancel(t.Context())
			step = s
			putErr := c.put(ctx, "abort", data)
			ctx, cancel = context.WithCancel(t.Context())
			_, getErr := c.get(ctx, "abort", "")
			cancel()
			if s == "prepare" {
				assert.ErrorIs(t, putErr, context.Canceled)
				assert.ErrorIs(t, getErr, context.Canceled)
			}
			step = ""
		}
	}
	f.settled()
	got, err := c.get(t.Context(), "abort", "")
	require.NoError(t, err)
	sameBytes(t, data, got)
	f.interrupt()
}

// TestGatewayKilled kills the gateway during each step and starts another one. The client must work again, with no
// object of the lost transfer left.
func TestGatewayKilled(t *testing.T) {
	var f *front
	var at atomic.Value // string; requests that end a transfer run on other goroutines
	at.Store("")
	f = newFront(t, false, func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			switch at := at.Load().(string); {
			case at == "" || filepath.Base(r.URL.Path) != filepath.Base(at):
				return base.RoundTrip(r)
			case filepath.Dir(at) == "after":
				defer f.kill()
			default:
				time.AfterFunc(2*time.Millisecond, func() { f.process.Process.Kill() })
			}
			return base.RoundTrip(r)
		})
	})
	c := awsStore{f.aws(f.transport)}
	data := pattern(8<<20, 1)
	for _, step := range []string{"after/prepare", "during/ready"} {
		for name, do := range map[string]func() error{
			"put": func() error { return c.put(t.Context(), "killed", data) },
			"get": func() error { _, err := c.get(t.Context(), "killed", ""); return err },
		} {
			t.Run(step+" "+name, func(t *testing.T) {
				at.Store("")
				require.NoError(t, c.put(t.Context(), "killed", data))
				at.Store(step)
				err := do()
				if filepath.Dir(step) == "after" {
					assert.Error(t, err)
				}
				f.kill()
				assert.Eventually(t, func() bool { return f.fabric.Resources()["qp"] == 0 }, 10*time.Second, 10*time.Millisecond)
				at.Store("")
				f.start()
				before := f.transport.Stats().Gets
				require.NoError(t, c.put(t.Context(), "again", data))
				got, err := c.get(t.Context(), "again", "")
				require.NoError(t, err)
				sameBytes(t, data, got)
				assert.Equal(t, before+1, f.transport.Stats().Gets)
				at.Store(step)
			})
		}
	}
	at.Store("")
	f.settled()
	f.interrupt()
}
