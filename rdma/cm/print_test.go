// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// logged returns an object as printed by log/slog in JSON.
func logged(t *testing.T, o any) string {
	t.Helper()
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("", "o", o)
	_, text, _ := bytes.Cut(out.Bytes(), []byte(`"o":`))
	assert.Equal(t, fmt.Sprintf("%q}\n", fmt.Sprint(o)), string(text))
	return fmt.Sprint(o)
}

// TestPrint: IDs print their addresses, also before they are created and after they are closed.
func TestPrint(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	require.NoError(t, err)
	id, err := ch.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	assert.Equal(t, "unbound ID", logged(t, id))
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:7000")))
	assert.Equal(t, "ID 127.0.0.1:7000 on soft0", logged(t, id))
	peer := netip.MustParseAddrPort("127.0.0.1:7001")
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, peer, time.Second))
	e, err := ch.Event(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, "RDMA_CM_EVENT_ADDR_RESOLVED of ID 127.0.0.1:7000 to 127.0.0.1:7001 on soft0", logged(t, e))
	require.NoError(t, id.Close())
	assert.Equal(t, "ID 127.0.0.1:7000 to 127.0.0.1:7001 on soft0, closed", logged(t, id))
	assert.Equal(t, "RDMA_CM_EVENT_ADDR_RESOLVED of ID 127.0.0.1:7000 to 127.0.0.1:7001 on soft0, closed", logged(t, e))
	name := ch.name()
	assert.Equal(t, name, logged(t, ch))
	require.NoError(t, ch.Close())
	assert.Equal(t, name+", closed", logged(t, ch))

	assert.Equal(t, "ID that was never created", logged(t, new(ID)))
	assert.Equal(t, "event channel that was never created", logged(t, new(EventChannel)))
	assert.Equal(t, "no event", logged(t, Event{}))
}

// TestPrintAfterEvent: an ID prints the addresses set by an event, even if another goroutine took the event before the
// call that requested it returned.
func TestPrintAfterEvent(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	require.NoError(t, err)
	defer ch.Close()
	for range 500 {
		id, err := ch.CreateID(rdmacm.PS_TCP)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := ch.Event(timeout(t))
			assert.NoError(t, err)
		}()
		peer := netip.MustParseAddrPort("127.0.0.1:7001")
		require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, peer, time.Second))
		<-done
		require.Equal(t, "ID "+id.LocalAddr().String()+" to 127.0.0.1:7001 on soft0", id.String())
		require.NoError(t, id.Close())
	}
}

// TestPrintDoesNotWait: an ID can be printed while another goroutine waits on it or closes it.
func TestPrintDoesNotWait(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for range 10 {
		id := newSoftID(t, f, rdmacm.PS_TCP)
		id.record.Lock() // held by calls that change its queues
		id.mu.Lock()
		assert.Equal(t, "unbound ID", id.String())
		id.mu.Unlock()
		id.record.Unlock()
		stop, end := context.WithCancel(context.Background())
		var others sync.WaitGroup
		others.Go(func() {
			for stop.Err() == nil {
				fmt.Fprint(io.Discard, id, id.channel)
			}
		})
		require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
		require.NoError(t, id.Listen(1))
		others.Go(func() { id.GetRequest(timeout(t)) })
		require.NoError(t, id.Close())
		end()
		others.Wait()
	}
}
