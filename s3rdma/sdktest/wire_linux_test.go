// SPDX-License-Identifier: BSD-2-Clause

package sdktest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/s3rdma"
)

// TestWire transfers objects between devices that exchange packets.
func TestWire(t *testing.T) {
	for name, direct := range map[string]bool{"hipobj-rc-v2": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			r := newTestbed(t, settings{wire: true, handler: s3rdma.HandlerOptions{Direct: direct},
				client: s3rdma.Options{Direct: direct}})
			for name, c := range r.stores(r.transport) {
				data := pattern(3<<20+1, 1)
				require.NoError(t, c.put(t.Context(), name, data))
				got, err := c.get(t.Context(), name, "")
				require.NoError(t, err)
				sameBytes(t, data, got)
			}
			want := s3rdma.Stats{Puts: 2, Gets: 2}
			if direct {
				want.Puts = 1 // minio-go signs the chunks of its bodies
			}
			assert.Equal(t, want, r.transport.Stats())
		})
	}
}

// TestClientProcess: clients in other processes finish or are killed. Afterwards the server has no session, region or
// queue pair.
func TestClientProcess(t *testing.T) {
	if url := os.Getenv("S3RDMA_SERVER"); url != "" {
		clientProcess(t, url, os.Getenv("S3RDMA_DEATH"))
		return
	}
	r := newTestbed(t, settings{wire: true, handler: s3rdma.HandlerOptions{Direct: true,
		SessionLifetime: 300 * time.Millisecond, TransferTimeout: 2 * time.Second}})
	for _, death := range []string{"", "prepared PUT", "prepared GET", "ready PUT", "ready GET", "direct PUT", "direct GET"} {
		t.Run(death, func(t *testing.T) {
			c := exec.Command(os.Args[0], "-test.run=^TestClientProcess$", "-test.v")
			c.Env = append(os.Environ(), "S3RDMA_SERVER="+r.server.URL, "S3RDMA_DEATH="+death)
			out, err := c.CombinedOutput()
			if death == "" {
				require.NoError(t, err, string(out))
			} else {
				require.ErrorContains(t, err, "killed", string(out))
			}
			assert.Contains(t, string(out), "moved by RDMA: {1 1 0 0}")
			assert.Eventually(t, func() bool { return r.handler.Sessions() == 0 }, 10*time.Second, 5*time.Millisecond)
		})
	}
}

// clientProcess puts and gets an object, and then kills its process at a step of another request.
func clientProcess(t *testing.T, url, death string) {
	device, err := rdma.Open("soft@127.0.0.63")
	require.NoError(t, err)
	die := func() { // does not return
		self, _ := os.FindProcess(os.Getpid())
		self.Kill()
		select {}
	}
	at, method, _ := strings.Cut(death, " ")
	var armed bool
	between := roundTripper(func(r *http.Request) (*http.Response, error) {
		if armed && (strings.HasSuffix(r.URL.Path, "ready") || r.Header.Get("X-Amz-Rdma-Token") != "" && at == "direct") {
			if at != "prepared" {
				go http.DefaultTransport.RoundTrip(r)
				time.Sleep(3 * time.Millisecond)
			}
			die()
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	transport, err := s3rdma.NewTransport(between, s3rdma.Options{Device: device, Signer: signer, Threshold: threshold,
		Direct: at == "direct"})
	require.NoError(t, err)
	r := &testbed{t: t, server: &httptest.Server{URL: url}}
	c := awsStore{r.aws(transport)}
	data := pattern(8<<20, 1)
	require.NoError(t, c.put(t.Context(), "process", data))
	got, err := c.get(t.Context(), "process", "")
	require.NoError(t, err)
	sameBytes(t, data, got)
	fmt.Println("moved by RDMA:", transport.Stats())
	armed = true
	switch {
	case method == http.MethodPut:
		c.put(t.Context(), "process", data)
	case method == http.MethodGet:
		c.get(t.Context(), "process", "")
	}
	require.NoError(t, transport.Close())
	require.NoError(t, device.Close())
}

// BenchmarkObjects compares transfers with plain HTTP over loopback, on devices in one process and on devices that
// exchange packets. The S3 server only keeps one object.
func BenchmarkObjects(b *testing.B) {
	for _, size := range []int{1 << 20, 16 << 20, 64 << 20} {
		data := pattern(size, 1)
		inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"1"`)
			if r.Method == http.MethodPut {
				io.Copy(io.Discard, r.Body)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(size))
			if r.Method == http.MethodGet {
				w.Write(data)
			}
		})
		for _, variant := range []string{"http", "soft", "wire"} {
			fabrics := [2]*soft.Fabric{}
			names := [2]string{"soft0", "soft1"}
			if variant == "wire" {
				for i, address := range []string{"127.0.0.61", "127.0.0.62"} {
					fabrics[i] = newFabric(b, soft.Options{Devices: []soft.DeviceOptions{{Name: names[i],
						Address: netip.MustParseAddr(address), Wire: true}}})
				}
			} else {
				fabrics[0] = newFabric(b, soft.Options{})
				fabrics[1] = fabrics[0]
			}
			from, err := rdma.OpenOn(fabrics[0], names[0])
			require.NoError(b, err)
			to, err := rdma.OpenOn(fabrics[1], names[1])
			require.NoError(b, err)
			h, err := s3rdma.NewHandler(inner, s3rdma.HandlerOptions{Device: to, Idle: 1 << 30})
			require.NoError(b, err)
			s := httptest.NewServer(h)
			base := &http.Transport{}
			transport, err := s3rdma.NewTransport(base, s3rdma.Options{Device: from, Signer: signer, Idle: 1 << 30})
			require.NoError(b, err)
			over := http.RoundTripper(transport)
			if variant == "http" {
				over = base
			}
			c := (&testbed{server: s}).aws(over)
			run := func(op string, do func(context.Context) error) {
				b.Run(fmt.Sprintf("%s/%dMiB/%s", op, size>>20, variant), func(b *testing.B) {
					b.SetBytes(int64(size))
					for b.Loop() {
						if err := do(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			run("put", func(ctx context.Context) error {
				_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"),
					Body: bytes.NewReader(data)}, func(o *s3.Options) {
					o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
					o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
				})
				return err
			})
			run("get", func(ctx context.Context) error {
				out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, out.Body)
				out.Body.Close()
				return err
			})
			require.NoError(b, transport.Close())
			base.CloseIdleConnections()
			s.Close()
			require.NoError(b, h.Close())
			require.NoError(b, from.Close())
			require.NoError(b, to.Close())
			for _, f := range fabrics {
				require.NoError(b, f.Close())
			}
		}
	}
}
