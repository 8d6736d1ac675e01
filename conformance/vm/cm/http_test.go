// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/stream"
)

// TestHTTP runs unmodified net/http over streams: concurrent requests with large bodies in both directions on
// persistent connections.
func TestHTTP(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		unchanged(t)
		l, err := listenConfig(on(stream.Config{Protocol: protocol})).Listen(withTimeout(t), address(t, 0).String())
		require.NoError(t, err)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := sha256.New()
			n, _ := io.Copy(h, r.Body)
			fmt.Fprintf(w, "%d %x\n", n, h.Sum(nil))
			w.Write(bytes.Repeat([]byte("answer"), 50_000))
		})}
		go server.Serve(l)
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
			at string) (net.Conn, error) {
			return dialer(on(stream.Config{Protocol: protocol})).Dial(ctx, at)
		}}}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				body := make([]byte, 500_000)
				rand.NewChaCha8([32]byte{byte(i)}).Read(body)
				for range 5 {
					answer, err := client.Post("http://"+l.Addr().String()+"/", "text/plain", bytes.NewReader(body))
					if !assert.NoError(t, err) {
						return
					}
					got, err := io.ReadAll(answer.Body)
					assert.NoError(t, err)
					answer.Body.Close()
					want := fmt.Appendf(nil, "%d %x\n", len(body), sha256.Sum256(body))
					assert.True(t, bytes.HasPrefix(got, want), "%.80q", got)
					assert.Len(t, got, len(want)+300_000)
				}
			})
		}
		all.Wait()
		client.CloseIdleConnections()
		require.NoError(t, server.Shutdown(withTimeout(t)))
	})
}

// TestHTTPExample runs both ends of the example.
func TestHTTPExample(t *testing.T) {
	inGuest(t, "both ends are separate processes")
	at := address(t, 7520)
	if _, err := exec.LookPath("http"); err != nil {
		t.Skip("the example is not in the guest: run vmtest -with ./examples/http")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", bytes.Repeat([]byte("0123456789"), 100_000), 0o644))
	server := run(t, "http", "-listen", at.String(), dir)
	got := retry(t, func() ([]byte, error) { return exec.Command("http", "http://"+at.String()+"/file").Output() })
	assert.Len(t, got, 1_000_000)
	require.NoError(t, server.cmd.Process.Kill())
	<-server.done
}
