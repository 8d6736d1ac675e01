// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	manager "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

// envBackend returns package native or rdma-core, as envInside selects.
func envBackend(t *testing.T) runtime.Backend {
	t.Helper()
	if os.Getenv(envInside) == pathNative {
		return backend(t)
	}
	return runtime.Native
}

// compareRecords runs a test by libmlx5 and by package native, and compares its results and its requests to the kernel.
// undefined matches bytes that libibverbs sends uninitialized; nil means none.
func compareRecords(t *testing.T, undefined *regexp.Regexp) {
	t.Helper()
	for _, e := range releases(t) {
		var texts [2]string
		for i, path := range []string{pathC, pathNative} {
			record := filepath.Join(t.TempDir(), "record")
			results := filepath.Join(t.TempDir(), "results")
			again(t, e, path, "GOVERBS_RECORD="+record, envResults+"="+results)
			text := requests(MLX5, read(t, record), make([]int, len(differences)))
			if undefined != nil {
				text = undefined.ReplaceAllString(text, "$1$2")
			}
			texts[i] = text + read(t, results)
		}
		assert.Greater(t, strings.Count(texts[0], "\n"), 20, texts[0])
		assert.Equal(t, texts[0], texts[1], e.libraries.Release)
	}
}

// errnoOf returns the error number of a call, or 0.
func errnoOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var errno syscall.Errno
	require.True(t, errors.As(err, &errno), "%v", err)
	return int(errno)
}

// TestNativeOpenQP compares ibv_open_qp, and calls with the handles that it returns, by libmlx5 and by package native.
// libmlx5 leaves errno unset when it fails, and corrupts memory when it destroys a handle: TestOpenedQP does that.
func TestNativeOpenQP(t *testing.T) {
	if os.Getenv(envInside) == "" {
		// uninitialized bytes follow the type in its word
		compareRecords(t, regexp.MustCompile(`(command 28, .*\n  core, 32 bytes: address \S+ )\S+()`))
		return
	}
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	var n int32
	list, err := verbs.From{Backend: envBackend(t)}.GetDeviceList(&n)
	require.NoError(t, err)
	u := &user{t: t}
	u.context, err = verbs.OpenDevice(list.Deref())
	require.NoError(t, err)
	u.xrcd, err = verbs.OpenXRCD(u.context, &ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
		CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
	require.NoError(t, err)
	qp, err := verbs.CreateQPEx(u.context, &ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(u.xrcd),
		CompMask: ibv.QP_INIT_ATTR_XRCD})
	require.NoError(t, err)
	const all = ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE
	var handles []*ibv.QP
	for _, try := range []ibv.QPOpenAttr{
		{QPNum: qp.QPNum, QPType: ibv.QPT_XRC_RECV, CompMask: all},
		{QPNum: qp.QPNum, QPType: ibv.QPT_XRC_RECV, CompMask: all | ibv.QP_OPEN_ATTR_CONTEXT, QPContext: 7},
		{QPNum: qp.QPNum, QPType: ibv.QPT_XRC_RECV, CompMask: all &^ ibv.QP_OPEN_ATTR_NUM},
		{QPNum: qp.QPNum, QPType: ibv.QPT_XRC_RECV, CompMask: all &^ ibv.QP_OPEN_ATTR_TYPE},
		{QPNum: qp.QPNum, QPType: ibv.QPT_XRC_RECV, CompMask: all | ibv.QP_OPEN_ATTR_RESERVED},
		{QPNum: qp.QPNum, QPType: ibv.QPT_RC, CompMask: all},
		{QPNum: qp.QPNum + 100, QPType: ibv.QPT_XRC_RECV, CompMask: all},
	} {
		try.XRCD = ibv.PtrTo(u.xrcd)
		h, err := verbs.OpenQP(u.context, &try)
		fmt.Fprintln(out, err != nil)
		if err == nil {
			fmt.Fprintln(out, h.QPContext, h.QPNum == qp.QPNum, h.QPType, h.State, h.PD, h.SendCQ, h.RecvCQ, h.SRQ,
				h.Context == ibv.PtrTo(u.context))
			handles = append(handles, h)
		}
	}
	require.Len(t, handles, 2)
	query := func() {
		for _, h := range handles {
			var attr ibv.QPAttr
			var init ibv.QPInitAttr
			err := verbs.QueryQP(h, &attr, ibv.QP_STATE|ibv.QP_ACCESS_FLAGS, &init)
			fmt.Fprintln(out, err != nil, attr.QPState, attr.QPAccessFlags, init.QPType, h.State)
		}
	}
	query()
	require.NoError(t, verbs.ModifyQP(handles[0], &ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1,
		QPAccessFlags: ibv.ACCESS_REMOTE_READ}, ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
	query()
	require.NoError(t, verbs.DestroyQP(qp))
	query() // the queue pair has other handles
}

// TestOpenedQP checks that a queue pair of type XRC_RECV works as long as it has a handle, and that each handle gets its
// events. Two contexts of a device share it, and the shared receive queue, by a domain named by a file.
func TestOpenedQP(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathNative)
		return
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	keep(t, file, err)
	var devices [2]*rdma.Device
	var domains [2]*rdma.XRCD
	b := envBackend(t)
	for i := range devices {
		devices[i], err = rdma.OpenOn(b, deviceName())
		keep(t, devices[i], err)
		domains[i], err = devices[i].OpenXRCD(&ibv.XRCDInitAttr{FD: int32(file.Fd()), Oflags: syscall.O_CREAT,
			CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
		keep(t, domains[i], err)
	}
	pd, err := devices[0].AllocPD()
	keep(t, pd, err)
	channel, err := devices[0].CreateCompChannel()
	keep(t, channel, err)
	cq, err := devices[0].CreateCQ(8, channel, 0)
	keep(t, cq, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	keep(t, mr, err)
	srq, err := devices[0].CreateSRQEx(&ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, PD: pd.Ptr(),
		CQ: cq.Ptr(), SRQType: ibv.SRQT_XRC, XRCD: domains[0].Ptr(), CompMask: ibv.SRQ_INIT_ATTR_TYPE |
			ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_XRCD}, rdma.QueueOptions{})
	keep(t, srq, err)
	sender, err := devices[0].CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_SEND, CompMask: ibv.QP_INIT_ATTR_PD,
		PD: pd.Ptr(), SendCQ: cq.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxInlineData: 16}},
		rdma.QueueOptions{})
	keep(t, sender, err)
	first, err := devices[0].CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD,
		XRCD: domains[0].Ptr()}, rdma.QueueOptions{})
	require.NoError(t, err)
	second, err := devices[1].OpenQP(&ibv.QPOpenAttr{QPNum: first.Num(), QPType: ibv.QPT_XRC_RECV,
		XRCD: domains[1].Ptr(), CompMask: ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE})
	keep(t, second, err)
	assert.Equal(t, first.Num(), second.Num())
	for from, to := range map[*rdma.QP]*rdma.QP{sender: first, first: sender} {
		end, err := to.Endpoint()
		require.NoError(t, err)
		require.NoError(t, from.Connect(end))
	}
	attr, _, err := second.Query(ibv.QP_STATE)
	require.NoError(t, err)
	assert.Equal(t, ibv.QPS_RTS, attr.QPState)
	number, err := srq.Num()
	require.NoError(t, err)
	for i := range 2 {
		receive(t, srq.PostRecv, mr.SGE(0, 64))
		send(t, sender, func(b *rdma.SendBatch) { b.Send(uint64(i)).Inline([]byte("shared")).XRC(number).Signaled() })
		for range 2 {
			wc := next(t, cq)
			require.NoError(t, rdma.CompletionErr(&wc))
		}
		assert.Equal(t, "shared", string(mr.Bytes()[:6]))
		if i == 0 {
			require.NoError(t, first.Close())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	send(t, sender, func(b *rdma.SendBatch) { b.Send(9).Inline([]byte("to none")).XRC(1 << 20).Signaled() })
	for {
		e, err := devices[1].Event(ctx)
		require.NoError(t, err)
		if e.Type == ibv.EVENT_QP_REQ_ERR {
			assert.Same(t, second, e.QP)
			break
		}
	}
	wc := next(t, cq)
	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, wc.Status)
}

// channelNumber matches the file descriptor of a completion channel in CREATE_CQ.
var channelNumber = regexp.MustCompile(`(command 12, .*\n  core, 32 bytes: address \S+ )\S+`)

// TestConnectionXRC connects XRC queue pairs by the connection manager: the identifier of the receiver creates a shared
// receive queue in the domain of its device, and completes its receives.
func TestConnectionXRC(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, e := range releases(t) {
			var calls [2]string
			for i, path := range []string{pathC, pathNative} {
				record := filepath.Join(t.TempDir(), "record")
				again(t, e, path, "GOVERBS_RECORD="+record)
				calls[i] = channelNumber.ReplaceAllString(requests(MLX5, read(t, record), make([]int, len(differences))), "$1")
			}
			assert.Equal(t, calls[0], calls[1], e.libraries.Release)
			assert.Contains(t, calls[0], "command 27,", "CREATE_XSRQ")
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := envBackend(t)
	end := func(flags rdmacm.AddrInfoFlags, kind ibv.QPType) *cm.ID {
		info, err := cm.GetAddrInfoOn(ctx, b, Address, "7471",
			cm.Hints{Flags: flags | rdmacm.RAI_NUMERICHOST, QPType: kind, PortSpace: rdmacm.PS_IB})
		require.NoError(t, err)
		defer info.Close()
		id, err := cm.CreateEP(ctx, info, nil, nil, rdma.QueueOptions{})
		keep(t, id, err)
		return id
	}
	listener := end(rdmacm.RAI_PASSIVE, ibv.QPT_XRC_RECV)
	require.NoError(t, listener.Listen(1))
	client := end(0, ibv.QPT_XRC_SEND)
	_, err := client.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_XRC_SEND, SQSigAll: 1,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxInlineData: 16}}, rdma.QueueOptions{})
	require.NoError(t, err)
	connected := make(chan error, 1)
	go func() { connected <- client.Connect(ctx, nil, nil) }()
	server, _, err := listener.GetRequest(ctx)
	require.NoError(t, err)
	plain := ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 2, MaxSGE: 1}} // package cm calls rdma_create_srq_ex
	require.NoError(t, manager.CreateSRQ(server.C(), nil, &plain))
	var unused uint32
	require.NoError(t, verbs.GetSRQNum(server.C().SRQ.Deref(), &unused), "it is of XRC")
	manager.DestroySRQ(server.C())
	srq, err := server.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Equal(t, ibv.SRQT_XRC, srq.Type())
	_, err = server.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_XRC_RECV}, rdma.QueueOptions{})
	require.NoError(t, err)
	memory := unsafe.Slice((*byte)((&caller{t: t}).memory()), 16) // where records have the same addresses
	mr, err := server.RegMsgs(memory)
	require.NoError(t, err)
	require.NoError(t, server.PostRecv(7, mr.Bytes(), mr))
	number, err := srq.Num()
	require.NoError(t, err)
	require.NoError(t, server.Accept(ctx, nil, nil))
	require.NoError(t, <-connected)
	send(t, client.QP(), func(b *rdma.SendBatch) { b.Send(8).Inline([]byte("to an SRQ")).XRC(number) })
	wc, err := server.GetRecvComp(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 7, wc.WRID)
	assert.Equal(t, "to an SRQ", string(mr.Bytes()[:wc.ByteLen]))
	wc, err = client.GetSendComp(ctx)
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	require.NoError(t, server.QP().Close())
	require.NoError(t, mr.Close())
	require.NoError(t, server.Close())
}
