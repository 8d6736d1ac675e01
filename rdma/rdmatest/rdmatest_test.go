// SPDX-License-Identifier: BSD-2-Clause

package rdmatest

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// fake is a testing.TB whose cleanup runs on request and which records failures.
type fake struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (f *fake) Helper()                        {}
func (f *fake) Cleanup(do func())              { f.cleanups = append(f.cleanups, do) }
func (f *fake) Error(args ...any)              { f.failures = append(f.failures, fmt.Sprint(args...)) }
func (f *fake) Errorf(form string, arg ...any) { f.Error(fmt.Sprintf(form, arg...)) }

func (f *fake) end() {
	for _, do := range slices.Backward(f.cleanups) {
		do()
	}
}

// TestLeaks: a test that leaves an object open fails, and the error names the object and where it was created.
func TestLeaks(t *testing.T) {
	f := &fake{TB: t}
	fabric := NewFabric(f, soft.Options{})
	device, err := rdma.OpenOn(fabric, "soft0")
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	closed, err := pd.RegMR(make([]byte, 8), 0)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	id, err := cm.CreateIDOn(fabric, 0x0106)
	require.NoError(t, err)
	assert.ErrorContains(t, fabric.Close(), "not closed: ")
	f.end()
	all := strings.Join(f.failures, "\n")
	for name, by := range map[string]string{"ctx": "rdma.OpenOn", "pd": "rdma.Device.AllocPD",
		"cm_id, event channel": "cm.CreateIDOn"} {
		assert.Regexp(t, `not closed: `+name+` made at rdmatest/rdmatest_test.go:\d+ \(rdmatest.TestLeaks\) by `+by+
			`\b`, all)
	}
	assert.Len(t, f.failures, 3, all)

	require.NoError(t, rdma.CloseAll(nil, pd, device))
	require.NoError(t, id.Close())
	assert.Empty(t, fabric.Held())
	require.NoError(t, fabric.Close())
}

// TestSharedLeaks: shared objects of connections are not attributed to any connection. An ID that was not closed is
// attributed to its creator.
func TestSharedLeaks(t *testing.T) {
	f := &fake{TB: t}
	fabric := NewFabric(f, soft.Options{})
	bound := func() *cm.ID {
		id, err := cm.CreateIDOn(fabric, rdmacm.PS_TCP)
		require.NoError(t, err)
		require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
		_, err = id.Device() // also creates this side's shared objects
		require.NoError(t, err)
		return id
	}
	first := bound()
	second := bound()
	require.NoError(t, first.Close())
	f.end()
	all := strings.Join(f.failures, "\n")
	assert.Contains(t, all, "not closed: ctx, 2 pd shared by all IDs and connections of its device; closed with the "+
		"last one")
	assert.Contains(t, all, "not closed: cm_id, event channel made at rdmatest/rdmatest_test.go:")
	assert.Len(t, f.failures, 2, all)
	require.NoError(t, second.Close())
	require.NoError(t, fabric.Close())
}

// TestNoLeaks: a test that closes everything it opens does not fail.
func TestNoLeaks(t *testing.T) {
	f := &fake{TB: t}
	Pair(f, NewFabric(f, soft.Options{}), ibv.QPT_RC)
	f.end()
	assert.Empty(t, f.failures)
}

// TestPair: messages from each side arrive at the other, for every type.
func TestPair(t *testing.T) {
	for _, of := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND} {
		t.Run(of.String(), func(t *testing.T) {
			a, b := Pair(t, NewFabric(t, soft.Options{Virtual: true}), of)
			assert.NotEqual(t, a.Device.Name(), b.Device.Name())
			send(t, a, b)
			if of != ibv.QPT_XRC_SEND {
				send(t, b, a)
			}
		})
	}
	t.Run("on one device", func(t *testing.T) {
		a, b := Pair(t, NewFabric(t, soft.Options{Devices: make([]soft.DeviceOptions, 1)}), ibv.QPT_RC)
		send(t, a, b)
	})
	t.Run("by name", func(t *testing.T) {
		a, b := PairOn(t, ibv.QPT_RC, "soft0", "soft1")
		send(t, a, b)
	})
}

func send(t *testing.T, from, to *End) {
	t.Helper()
	const grh = 40 // bytes in front of a datagram
	copy(from.MR.Bytes(), "hello")
	recvs, err := rdma.NewRecvBatch(1, 1)
	require.NoError(t, err)
	defer recvs.Close()
	recvs.Recv(1).Add(to.MR.SGE(100, 64))
	sends, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer sends.Close()
	request := sends.Send(2).Add(from.MR.SGE(0, 5)).Signaled()
	at := 100
	switch from.QP.Type() {
	case ibv.QPT_UD:
		request.UD(from.AH.Ptr(), from.Peer.QPNum, from.Peer.QKey)
		at += grh
	case ibv.QPT_XRC_SEND:
		number, err := to.SRQ.Num()
		require.NoError(t, err)
		request.XRC(number)
	}
	if to.SRQ != nil {
		_, err = to.SRQ.PostRecv(recvs)
	} else {
		_, err = to.QP.PostRecv(recvs)
	}
	require.NoError(t, err)
	_, err = from.QP.PostSend(sends)
	require.NoError(t, err)
	wcs := make([]ibv.WC, 1)
	for _, end := range []*End{from, to} {
		_, err = end.CQ.WaitBusy(t.Context(), wcs)
		require.NoError(t, err)
		require.NoError(t, rdma.CompletionErr(&wcs[0]))
	}
	assert.Equal(t, "hello", string(to.MR.Bytes()[at:at+5]))
}

// TestSleep: a virtual clock advances at once, and a real clock takes its time.
func TestSleep(t *testing.T) {
	fabric, start := NewFabric(t, soft.Options{Virtual: true}), time.Now()
	Sleep(fabric, time.Hour)
	assert.Equal(t, time.Hour, fabric.Now())
	assert.Less(t, time.Since(start), time.Minute)
	fabric, start = NewFabric(t, soft.Options{}), time.Now()
	Sleep(fabric, 20*time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
}

// TestWriteLeaks: if the environment requests it, a program reports the objects that it left open.
func TestWriteLeaks(t *testing.T) {
	if os.Getenv("GOVERBS_TEST_LEAKS") != "" {
		device, err := rdma.Open("soft0")
		require.NoError(t, err)
		_, err = device.NewRC(rdma.QPParts{})
		require.NoError(t, err)
		closed, err := device.CreateCQ(1, nil, 0)
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		require.NoError(t, rdma.WriteLeaks(os.Stdout))
		return
	}
	for _, leaks := range []string{"", "1"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWriteLeaks$")
		cmd.Env = append(os.Environ(), "GOVERBS_TEST_LEAKS=1", "GOVERBS_LEAKS="+leaks)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		n := 0
		if leaks != "" {
			n = 2
			assert.Regexp(t, `not closed: soft0, made at rdmatest/rdmatest_test.go:\d+ \(rdmatest.TestWriteLeaks\) by .*
not closed: PD \d+ on soft0, .*, QP 0x\w+ \(RC\), made at rdmatest/rdmatest_test.go:.* by rdma.Device.NewRC\n`,
				string(out))
		}
		assert.Equal(t, n, strings.Count(string(out), "not closed"), "%s", out)
	}
}

// TestLeaksOfStreams: objects that a listener's goroutine creates are attributed to the program's call of Listen, and
// objects of accepted connections to the call of Accept. Calls through the standard library are skipped.
func TestLeaksOfStreams(t *testing.T) {
	f := &fake{TB: t}
	fabric := NewFabric(f, soft.Options{})
	config := stream.Config{Backend: fabric}
	var l *stream.Listener
	var err error
	lc, dialer := stream.ListenConfig{Config: config}, stream.Dialer{Config: config}
	sync.OnceFunc(func() { l, err = lc.Listen(t.Context(), "127.0.0.1:0") })() // through package sync
	require.NoError(t, err)
	var open []io.Closer
	_ = slices.ContainsFunc([]int{1, 2}, func(int) bool { // through package slices
		conn, err := dialer.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		open = append(open, conn)
		return false
	})
	accepted, err := l.Accept() // the other connection keeps waiting
	require.NoError(t, err)
	f.end()
	all := strings.Join(f.failures, "\n")
	for _, want := range []string{
		`^not closed: 2 cm_id, 2 mr, 2 qp made .* by stream.Dialer.Dial$`, // both were created at the same place
		`^not closed: cm_id, mr, qp made .* by stream.Listener.Accept$`,
		// the listener, and connections that wait to be accepted
		`^not closed: 2 cm_id, event channel, mr, qp made .* by stream.ListenConfig.Listen$`,
		`^not closed: channel, cq, ctx, event channel, 2 pd shared by all IDs`,
	} {
		assert.Regexp(t, "(?m)"+want, all)
	}
	assert.Len(t, f.failures, 4, all)
	assert.Equal(t, 3, strings.Count(all, " made at rdmatest/rdmatest_test.go:"), all)
	for _, c := range append(open, accepted, l) {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return len(fabric.Held()) == 0 }, 20*time.Second, time.Millisecond)
	require.NoError(t, fabric.Close())
}
