// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// TestFiles checks that a file arrives unchanged on the software device, and that a missing file is an error.
func TestFiles(t *testing.T) {
	fabric, err := soft.Default()
	require.NoError(t, err)
	config = stream.Config{Backend: fabric}
	l, err := (&stream.ListenConfig{Config: config}).Listen(context.Background(), "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: http.FileServer(http.Dir("."))}
	go server.Serve(l)
	defer server.Close()
	var got strings.Builder
	require.NoError(t, get("http://"+l.Addr().String()+"/main.go", &got))
	want, err := os.ReadFile("main.go")
	require.NoError(t, err)
	assert.Equal(t, string(want), got.String())
	assert.ErrorContains(t, get("http://"+l.Addr().String()+"/nothing", &got), "404")
}
