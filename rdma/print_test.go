// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// printed returns an object's text and checks that fmt and slog print the same.
func printed(t *testing.T, o any) string {
	t.Helper()
	text := fmt.Sprint(o)
	assert.Equal(t, text, fmt.Sprintf("%+v", o))
	assert.Equal(t, fmt.Sprintf("%q", text), fmt.Sprintf("%q", o))
	var out bytes.Buffer
	options := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key != "o" {
			return slog.Attr{}
		}
		return a
	}}
	slog.New(slog.NewTextHandler(&out, options)).Info("", "o", o)
	slog.New(slog.NewJSONHandler(&out, options)).Info("", "o", o)
	asText, asJSON, _ := strings.Cut(out.String(), "\n")
	assert.Equal(t, "o="+text, strings.ReplaceAll(asText, `"`, "")) // slog quotes texts with spaces
	assert.Equal(t, fmt.Sprintf("{\"o\":%q}\n", text), asJSON)
	return text
}

// TestObjectsPrint: objects print their type, their number, their device and whether they are closed.
func TestObjectsPrint(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_READ)
	require.NoError(t, err)
	mw, err := pd.AllocMW(ibv.MW_TYPE_2)
	require.NoError(t, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	ah, err := pd.CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{
		DGID: must(d.FindGID(GIDQuery{})).GID, SGIDIndex: 1}})
	require.NoError(t, err)
	xrcd, err := d.OpenXRCD(&ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
		CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
	require.NoError(t, err)
	other, err := d.CreateCQ(8, nil, 0)
	require.NoError(t, err)
	poller, err := NewPoller[int](e.cq, 1)
	require.NoError(t, err)
	calls, err := NewCalls(other, 1, nil)
	require.NoError(t, err)
	type closer = interface{ Close() error }
	all := []closer{calls, poller, ah, mw, mr, e.qp, srq, e.cq, other, e.channel, xrcd, pd, d}
	want := []string{
		fmt.Sprintf("calls of CQ %d on soft0", other.C().Handle),
		fmt.Sprintf("a poller of CQ %d on soft0", e.cq.C().Handle),
		fmt.Sprintf("AH %d on soft0", ah.C().Handle), fmt.Sprintf("MW %d on soft0", mw.C().Handle),
		fmt.Sprintf("MR %d on soft0", mr.C().Handle), fmt.Sprintf("QP %#x (RC) on soft0", e.qp.Num()),
		fmt.Sprintf("SRQ %d on soft0", srq.C().Handle), fmt.Sprintf("CQ %d on soft0", e.cq.C().Handle),
		fmt.Sprintf("CQ %d on soft0", other.C().Handle),
		fmt.Sprintf("completion channel %d on soft0", e.channel.C().FD),
		"XRCD on soft0", fmt.Sprintf("PD %d on soft0", pd.C().Handle), "soft0",
	}
	for i, o := range all {
		assert.Equal(t, want[i], printed(t, o))
	}
	for _, secret := range []uint32{mr.RKey(), mr.LKey(), mw.RKey()} {
		assert.NotContains(t, fmt.Sprint(mr, mw), fmt.Sprintf("%x", secret))
	}
	for i, o := range all {
		require.NoError(t, o.Close())
		assert.Equal(t, want[i]+", closed", printed(t, o))
	}
}

// TestZeroObjectsPrint: zero objects and, with fmt, nil pointers can be printed.
func TestZeroObjectsPrint(t *testing.T) {
	for _, o := range append(objectsOfC, new(Poller[string])) {
		assert.Equal(t, "an object that was never created", printed(t, o), "%T", o)
		assert.Equal(t, "<nil>", fmt.Sprint(reflect.Zero(reflect.TypeOf(o)).Interface()))
	}
	assert.Equal(t, "an object that was never created", printed(t, new(Calls)))
}

// TestPrintingDoesNotWait: objects can be printed while they are used and closed, without a data race.
func TestPrintingDoesNotWait(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	pd = closeAtEnd(t, pd, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	connectToSelf(t, e.qp)

	// Close waits for a call in progress, which holds the same locks as a slow call of C.
	require.NoError(t, e.qp.use("test"))
	e.qp.changes.Lock()
	closing := make(chan error)
	go func() { closing <- e.qp.Close() }()
	for !e.qp.isClosed() {
		assert.NotContains(t, e.qp.String(), "closed")
	}
	want := fmt.Sprintf("QP %#x (RC) on soft0", e.qp.Num())
	assert.Equal(t, want, e.qp.String(), "while it is being closed")
	e.qp.changes.Unlock()
	e.qp.done()
	require.NoError(t, <-closing)
	assert.Equal(t, want+", closed", e.qp.String())

	for range rounds(t, 20) {
		e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
		mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() { e.cq.Wait(ctx, make([]ibv.WC, 1)) })
		others.Go(func() {
			for ctx.Err() == nil {
				fmt.Fprint(io.Discard, e.qp, e.cq, e.channel, mr, pd, d)
			}
		})
		connectToSelf(t, e.qp)
		require.NoError(t, mr.Rereg(ibv.REREG_MR_CHANGE_ACCESS, nil, nil, ibv.ACCESS_LOCAL_WRITE))
		for _, o := range []interface{ Close() error }{e.qp, mr} {
			require.NoError(t, o.Close())
		}
		cancel()
		others.Wait()
	}
}
