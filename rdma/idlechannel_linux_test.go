// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package rdma

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestChannelWithoutWaits: a channel has only C's descriptor until the first wait duplicates it for the netpoller.
// Close closes both. Waits on a closed channel fail.
func TestChannelWithoutWaits(t *testing.T) {
	d := openSoft(t)
	var channels [2]*CompChannel
	for i := range channels {
		var err error
		channels[i], err = d.CreateCompChannel()
		require.NoError(t, err)
	}
	waited, idle := channels[0], channels[1]
	file := eventfd(t, waited.c.FD)
	assert.Equal(t, 1, opened(t, file))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := waited.Wait(ctx)
		done <- err
	}()
	assert.Eventually(t, func() bool { return opened(t, file) == 2 }, 20*time.Second, time.Millisecond)
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
	assert.Equal(t, 2, opened(t, file))
	for _, ch := range channels {
		require.NoError(t, ch.Close())
	}
	assert.Zero(t, opened(t, file))
	idle.ready.Poke() // no goroutine waits
	_, err := idle.ready.Wait(t.Context(), func() bool { return true }, never)
	assert.ErrorIs(t, err, os.ErrClosed)
}

// eventfd returns the id of a descriptor's eventfd.
func eventfd(t *testing.T, fd int32) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	require.NoError(t, err)
	_, id, found := strings.Cut(string(text), "eventfd-id:")
	require.True(t, found, "%s", text)
	id, _, _ = strings.Cut(id, "\n")
	return id
}

// opened returns the number of descriptors of an eventfd.
func opened(t *testing.T, id string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fdinfo/*")
	require.NoError(t, err)
	for _, path := range all {
		text, _ := os.ReadFile(path) // may be closed by now
		if strings.Contains(string(text), "eventfd-id:"+id+"\n") {
			n++
		}
	}
	return n
}
