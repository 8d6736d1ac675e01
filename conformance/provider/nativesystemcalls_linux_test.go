// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

const (
	envConnections = "GOVERBS_CONNECTIONS"
	envSystemCalls = "GOVERBS_EMULATED_CALLS"
)

// TestNativeSystemCalls checks that neither end of a connection needs more system calls on device files with package
// native than with librdmacm and libibverbs.
func TestNativeSystemCalls(t *testing.T) {
	if os.Getenv(envInside) != "" {
		insideConnections(t)
		return
	}
	const many = 11
	of := map[string]map[int]map[string]int{}
	for _, path := range []string{pathC, pathNative} {
		of[path] = map[int]map[string]int{}
		for _, n := range []int{0, 1, many} {
			file := filepath.Join(t.TempDir(), "calls")
			again(t, emulated(t), path, envConnections+"="+strconv.Itoa(n), envSystemCalls+"="+file)
			of[path][n] = systemCalls(read(t, file))
		}
	}
	sum := func(path string, n int) (all int) {
		for _, of := range of[path][n] {
			all += of
		}
		return all
	}
	for _, path := range []string{pathC, pathNative} {
		t.Logf("%s: listener %d %v, first connection %d %v, each of the others %.1f", path, sum(path, 0), of[path][0],
			sum(path, 1)-sum(path, 0), of[path][1], float64(sum(path, many)-sum(path, 1))/(many-1))
	}
	assert.LessOrEqual(t, sum(pathNative, 0), sum(pathC, 0), "a listener")
	assert.LessOrEqual(t, sum(pathNative, 1), sum(pathC, 1), "one connection")
	assert.LessOrEqual(t, sum(pathNative, many)-sum(pathNative, 1), sum(pathC, many)-sum(pathC, 1), "further ones")
	assert.Greater(t, sum(pathNative, 1)-sum(pathNative, 0), 20)
}

// systemCalls counts the lines of a record by their first word.
func systemCalls(record string) map[string]int {
	of := map[string]int{}
	for line := range strings.Lines(record) {
		of[strings.Fields(line)[0]]++
	}
	return of
}

// insideConnections makes connections one after another, each with a message.
func insideConnections(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv(envConnections))
	require.NoError(t, err)
	var b runtime.Backend = runtime.Native
	if os.Getenv(envInside) == pathNative {
		b = backend(t)
	}
	ch, err := cm.CreateEventChannelOn(b)
	keep(t, ch, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	to := netip.AddrPortFrom(netip.MustParseAddr(Address), 7471)
	listener, err := ch.CreateID(rdmacm.PS_TCP)
	keep(t, listener, err)
	require.NoError(t, listener.Bind(to))
	require.NoError(t, listener.Listen(4))
	for range n {
		connectOnce(t, ctx, ch, to)
	}
}

func connectOnce(t *testing.T, ctx context.Context, ch *cm.EventChannel, to netip.AddrPort) {
	t.Helper()
	event := func(want rdmacm.CMEventType) cm.Event {
		t.Helper()
		e, err := ch.Event(ctx)
		require.NoError(t, err)
		require.Equal(t, want, e.Type)
		return e
	}
	attr := func() *ibv.QPInitAttr {
		return &ibv.QPInitAttr{Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8}}
	}
	id, err := ch.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(ctx, netip.AddrPort{}, to, time.Second))
	event(rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(t, id.ResolveRoute(ctx, time.Second))
	event(rdmacm.CM_EVENT_ROUTE_RESOLVED)
	_, err = id.CreateQP(nil, attr(), rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, id.Connect(ctx, nil, nil))
	peer := event(rdmacm.CM_EVENT_CONNECT_REQUEST).ID
	_, err = peer.CreateQP(nil, attr(), rdma.QueueOptions{})
	require.NoError(t, err)
	mr, err := peer.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, peer.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, peer.Accept(ctx, nil, nil))
	event(rdmacm.CM_EVENT_ESTABLISHED)
	event(rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, id.PostSend(2, []byte("one"), nil, ibv.SEND_INLINE|ibv.SEND_SIGNALED))
	wc := next(t, peer.QP().RecvCQ())
	require.NoError(t, rdma.CompletionErr(&wc))
	require.NoError(t, id.Disconnect(ctx))
	event(rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, peer.Disconnect(ctx))
	require.NoError(t, mr.Close())
	require.NoError(t, id.Close())
	require.NoError(t, peer.Close())
}
