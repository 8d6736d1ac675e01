// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startServer starts a server and returns its address and a function that stops it.
func startServer(t *testing.T) (address string, end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	at, ended := make(chan string, 1), make(chan error, 1)
	registry := (&Collector{Host: simulatedHost(t), By: "name", Processes: 50}).Registry()
	go func() {
		ended <- Serve(ctx, "127.0.0.1:0", registry, func(a net.Addr) { at <- a.String() })
	}()
	t.Cleanup(cancel)
	return <-at, func() error {
		cancel()
		return <-ended
	}
}

// get requests a page.
func get(t *testing.T, url string) (status int, body string) {
	r, err := http.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(text)
}

func TestServe(t *testing.T) {
	address, end := startServer(t)
	status, body := get(t, "http://"+address+"/metrics")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, "\ngoverbs_port_received_bytes_total{device=\"mlx5_0\",port=\"1\"} 1e+06\n")
	status, body = get(t, "http://"+address+"/healthz")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "ok\n", body)
	status, _ = get(t, "http://"+address+"/etc/passwd")
	assert.Equal(t, http.StatusNotFound, status)
	r, err := http.Post("http://"+address+"/metrics", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	r.Body.Close()
	assert.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	assert.NoError(t, end(), "the shutdown is graceful")
	_, err = net.Dial("tcp", address)
	assert.Error(t, err)
	assert.ErrorContains(t, Serve(t.Context(), "192.0.2.1:1", nil, nil), "--listen HOST:PORT")
}

// TestHostile checks that peers which send too much or nothing are disconnected, and block neither other peers nor the
// shutdown.
func TestHostile(t *testing.T) {
	defer func(before time.Duration) { headerTime = before }(headerTime)
	headerTime = time.Second
	address, end := startServer(t)
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 1<<20))
	line, readErr := bufio.NewReader(c).ReadString('\n')
	if err == nil && readErr == nil { // or the connection was reset before all was sent
		assert.Contains(t, line, " 431 ")
	}
	for range maxConnections / 2 { // silent connections
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
	}
	status, _ := get(t, "http://"+address+"/metrics")
	assert.Equal(t, http.StatusOK, status)
	slow, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer slow.Close()
	_, err = slow.Write([]byte("GET /metrics HTTP/1.1\r\n"))
	require.NoError(t, err)
	require.NoError(t, slow.SetReadDeadline(time.Now().Add(headerTime+30*time.Second)))
	began := time.Now()
	_, _ = io.ReadAll(slow)
	assert.GreaterOrEqual(t, time.Since(began), headerTime/2)
	assert.Less(t, time.Since(began), headerTime+30*time.Second, "it was cut off")
	http.DefaultClient.CloseIdleConnections()
	assert.NoError(t, end())
}

// TestIdleConnections checks that connections without requests, or without further ones, do not block others.
func TestIdleConnections(t *testing.T) {
	defer func(before time.Duration) { headerTime = before }(headerTime)
	headerTime = time.Hour
	address, _ := startServer(t)
	for i := range 3 * maxConnections {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		if i%2 == 0 {
			continue
		}
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, r.StatusCode)
	}
}
