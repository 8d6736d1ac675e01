// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/s3rdma"
)

// TestDynamicS3 moves objects by cuObject's tokens on an mlx5 device.
func TestDynamicS3(t *testing.T) {
	if !insideDynamicPaths(t) {
		return
	}
	objects := map[string][]byte{}
	store := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Method == http.MethodPut {
			data, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			objects[r.URL.Path] = data
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(objects[r.URL.Path])))
		if r.Method == http.MethodGet {
			w.Write(objects[r.URL.Path])
		}
	})
	handler, err := s3rdma.NewHandler(store, s3rdma.HandlerOptions{Device: openDevice(t), Dynamic: true})
	keep(t, handler, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	sign := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKID/20261128/us-east-1/s3/aws4_request")
		return nil
	}
	transport, err := s3rdma.NewTransport(base, s3rdma.Options{Device: openDevice(t), Dynamic: true, Threshold: 1,
		Signer: s3rdma.SignerFunc(sign)})
	keep(t, transport, err)
	client := &http.Client{Transport: transport}
	do := func(method string, data []byte) []byte {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/bucket/key", bytes.NewReader(data))
		require.NoError(t, err)
		require.NoError(t, sign(t.Context(), r))
		response, err := client.Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, response.StatusCode)
		return got
	}
	for i, size := range []int{1, 4096, 70001, 3<<20 + 1} {
		data := bytes.Repeat([]byte{byte(i + 1), 2, 3, 5, 7, 11, 13}, size/7+1)[:size]
		do(http.MethodPut, data)
		assert.True(t, bytes.Equal(data, objects["/bucket/key"]), "%d bytes stored", size)
		assert.True(t, bytes.Equal(data, do(http.MethodGet, nil)), "%d bytes got", size)
	}
	assert.Equal(t, s3rdma.Stats{Puts: 4, Gets: 4}, transport.Stats())
}
