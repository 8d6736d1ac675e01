// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/unconfirmed"
)

// TestUnconfirmedSenders checks that unconfirmed offers of another host do not delay a sender.
func TestUnconfirmedSenders(t *testing.T) {
	defer func(d time.Duration) { confirmTime = d }(confirmTime)
	confirmTime = time.Hour
	t.Setenv("GOVERBS_DEVICE", "soft@127.47.1.1")
	name, at, done := filepath.Join(t.TempDir(), "to"), make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := Receive(t.Context(), "127.47.1.1:0", name, 1<<30, func(address string) { at <- address },
			func(reason error) {
				assert.NoError(t, reason)
			})
		done <- err
	}()
	address := <-at
	unconfirmed.Requests(t, "127.47.1.2", netip.MustParseAddrPort(address), 40, offer{size: 1 << 30}.marshal())
	t.Setenv("GOVERBS_DEVICE", "soft@127.47.1.3")
	_, err := Send(t.Context(), file(t, "right").Name(), address, nothing)
	require.NoError(t, err)
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the receiver is still running")
	}
	have, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "right", string(have))
}

// TestSilentSenders checks that connected but silent senders do not delay another one.
func TestSilentSenders(t *testing.T) {
	defer func(d time.Duration) { confirmTime = d }(confirmTime)
	confirmTime = time.Hour
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir := t.TempDir()
	address, received := startReceiver(t, filepath.Join(dir, "to"), nil)
	var open opened
	defer func() { assert.NoError(t, open.Close()) }()
	for range 3 {
		offerText(t, &open, address, strings.Repeat("wrong", 1000))
	}
	_, err := Send(t.Context(), file(t, "right").Name(), address, nothing)
	require.NoError(t, err)
	require.NoError(t, <-received)
	have, err := os.ReadFile(filepath.Join(dir, "to"))
	require.NoError(t, err)
	assert.Equal(t, "right", string(have))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

// TestTwoSenders checks that of two concurrent senders, one succeeds and the other fails.
func TestTwoSenders(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir := t.TempDir()
	address, received := startReceiver(t, filepath.Join(dir, "to"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	texts, ends := []string{strings.Repeat("a", 1<<20), strings.Repeat("b", 1<<20)}, make(chan string, 2)
	for _, text := range texts {
		from := file(t, text).Name()
		go func() {
			if _, err := Send(ctx, from, address, nothing); err != nil {
				text = ""
			}
			ends <- text
		}()
	}
	require.NoError(t, <-received)
	have, err := os.ReadFile(filepath.Join(dir, "to"))
	require.NoError(t, err)
	stored := <-ends
	if stored == "" {
		stored = <-ends
	} else {
		cancel() // the other one may detect it late
		assert.Empty(t, <-ends)
	}
	assert.True(t, stored == string(have))
}
