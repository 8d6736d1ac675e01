// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// These tests compare this package with libmlx5, request by request and completion by completion. conformance/provider
// runs them over an emulated kernel whose device does nothing, so that doorbells keep their last value. A twin is a
// queue pair of libmlx5 and its shadow: the same queues at other addresses, which this package uses.

const (
	envStill = "GOVERBS_EMULATED_STILL" // the device does nothing
	envLists = "GOVERBS_IDENTITY_LISTS" // number of lists to post
	envSeed  = "GOVERBS_IDENTITY_SEED"
	// libmlx5 is older than 64.0: in a completion of 128 bytes, it reads the result of a read or an atomic operation
	// from the wrong offset (fixed by commit 45184d2c87ee of rdma-core)
	envOld = "GOVERBS_IDENTITY_OLD"
)

// settings returns the run's settings from the environment.
func settings(t *testing.T) (lists int, seed uint64) {
	t.Helper()
	if os.Getenv(envStill) == "" {
		t.Skip("runs over the emulated kernel: go test ./conformance/provider -run TestIdentity")
	}
	lists, err := strconv.Atoi(os.Getenv(envLists))
	require.NoError(t, err)
	seed, err = strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	require.NoError(t, err)
	return lists, seed
}

// memory returns zeroed memory outside Go's heap.
func memory(t *testing.T, size int) []byte {
	t.Helper()
	m, err := offheap.Map(size, offheap.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m.Bytes()[:size]
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// area is memory of libmlx5 and its copy in the shadow.
type area struct {
	name       string
	c, shadows []byte
}

// shadow copies an area and returns the copy's address.
func (w *twin) shadow(t *testing.T, name string, at uintptr, size int) uintptr {
	t.Helper()
	c := unsafe.Slice((*byte)(pointer(at)), size)
	a := area{name, c, memory(t, size)}
	copy(a.shadows, c)
	w.areas = append(w.areas, a)
	return addressOf(a.shadows)
}

type twin struct {
	areas   []area
	cap     ibv.QPCap
	qp      *ibv.QP
	cq      *ibv.CQ
	ex      *ibv.CQEx // the same queue
	of      *queuePair
	in      *completionQueue
	cqes    [2][]byte // completion buffers
	ah      *ibv.AH
	otherAH *ibv.AH
	data    []byte // data of requests and receives
	rand    *rand.Rand

	list     *requests
	recvs    *receives
	next     uint32   // number of the next completion, since creation
	sent     []posted // requests that have not completed
	received []room   // receives that have not completed
	taken    uint16   // number of posted receives
	shorter  int      // number of lists posted by PostOne
	user     uint32   // index by which libmlx5 finds the queue pair
}

// posted holds the values of a request that its completion depends on.
type posted struct {
	at     uint16
	opcode uint8
	bytes  uint32 // number of bytes that it reads into mapped memory
}

// room is a receive and its size: a device puts at most that many bytes into a completion.
type room struct {
	at    uint16
	bytes uint32
}

const (
	most    = 8 // maximum requests in a list
	entries = 6 // maximum entries of a request, one more than fit
	data    = 4096
)

// requests holds requests in memory that C can read.
type requests struct {
	wrs  [most]ibv.SendWR
	sges [most][entries]ibv.SGE
	mws  [most]ibv.MW
	mr   ibv.MR
	bad  [2]ibv.Ptr[ibv.SendWR]
	wcs  [2][most]ibv.WC
}

type receives struct {
	wrs  [most]ibv.RecvWR
	sges [most][entries]ibv.SGE
	bad  [2]ibv.Ptr[ibv.RecvWR]
}

func newTwin(t *testing.T, kind ibv.QPType, everyOne bool, depth uint32, r *rand.Rand) *twin {
	t.Helper()
	n := new(int32)
	list, err := libibverbs.GetDeviceList(n)
	require.NoError(t, err)
	defer libibverbs.FreeDeviceList(list)
	c, err := libibverbs.OpenDevice(list.Deref())
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.CloseDevice(c) })
	pd, err := libibverbs.AllocPD(c)
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DeallocPD(pd) })
	w := &twin{rand: r, data: memory(t, data)}
	for i := range w.data {
		w.data[i] = byte(r.Uint32())
	}
	w.ex, err = libibverbs.CreateCQEx(c, &ibv.CQInitAttrEx{CQE: 15, WCFlags: ibv.WC_STANDARD_FLAGS})
	w.cq = libibverbs.CQExToCQ(w.ex)
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DestroyCQ(w.cq) })
	init := &ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(w.cq), RecvCQ: ibv.PtrTo(w.cq),
		Cap: ibv.QPCap{MaxSendWR: depth, MaxRecvWR: 16, MaxSendSGE: entries - 1, MaxRecvSGE: 3, MaxInlineData: 200}}
	if everyOne {
		init.SQSigAll = 1
	}
	if kind == ibv.QPT_XRC_SEND {
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
		x := &ibv.QPInitAttrEx{QPType: kind, SendCQ: init.SendCQ, Cap: init.Cap, SQSigAll: init.SQSigAll,
			CompMask: ibv.QP_INIT_ATTR_PD, PD: ibv.PtrTo(pd)}
		w.qp, err = libibverbs.CreateQPEx(c, x)
		init.Cap = x.Cap
	} else {
		w.qp, err = libibverbs.CreateQP(pd, init)
	}
	require.NoError(t, err)
	t.Cleanup(func() { libibverbs.DestroyQP(w.qp) })
	w.cap = init.Cap
	route := ibv.GlobalRoute{SGIDIndex: 1, HopLimit: 9, TrafficClass: 7, FlowLabel: 0x12345}
	require.NoError(t, libibverbs.QueryGID(c, 1, 1, &route.DGID))
	w.ready(t, kind, route)
	if kind == ibv.QPT_UD {
		w.ah, err = libibverbs.CreateAH(pd, &ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: route})
		require.NoError(t, err)
		t.Cleanup(func() { libibverbs.DestroyAH(w.ah) })
		route.HopLimit++
		w.otherAH, err = libibverbs.CreateAH(pd, &ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: route})
		require.NoError(t, err)
		t.Cleanup(func() { libibverbs.DestroyAH(w.otherAH) })
	}
	w.shadows(t, everyOne)
	w.list = (*requests)(unsafe.Pointer(unsafe.SliceData(memory(t, int(unsafe.Sizeof(requests{}))))))
	w.recvs = (*receives)(unsafe.Pointer(unsafe.SliceData(memory(t, int(unsafe.Sizeof(receives{}))))))
	return w
}

// ready moves libmlx5's queue pair to RTS.
func (w *twin) ready(t *testing.T, kind ibv.QPType, route ibv.GlobalRoute) {
	t.Helper()
	steps := []ibv.QPAttr{
		{QPState: ibv.QPS_INIT, PortNum: 1, QPAccessFlags: ibv.ACCESS_REMOTE_WRITE, QKey: 1},
		{QPState: ibv.QPS_RTR, PathMTU: ibv.MTU_1024, DestQPNum: 1, AHAttr: ibv.AHAttr{PortNum: 1, IsGlobal: 1,
			GRH: route}, MaxDestRdAtomic: 1, MinRNRTimer: 1},
		{QPState: ibv.QPS_RTS, Timeout: 1, RetryCnt: 1, RNRRetry: 1, MaxRdAtomic: 1},
	}
	from := ibv.QPS_RESET
	for _, s := range steps {
		require.NoError(t, libibverbs.ModifyQP(w.qp, &s, ibv.ModifyQP(kind, from, s.QPState).Required|ibv.QP_STATE))
		from = s.QPState
	}
}

// shadows creates the shadow.
func (w *twin) shadows(t *testing.T, everyOne bool) {
	t.Helper()
	out, in := new(mlx5dv.QP), new(mlx5dv.CQ)
	obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(w.qp), Out: ibv.PtrTo(out)},
		CQ: mlx5dv.ObjCQ{In: ibv.PtrTo(w.cq), Out: ibv.PtrTo(in)}}
	require.NoError(t, libmlx5.InitObj(obj, mlx5dv.OBJ_QP|mlx5dv.OBJ_CQ))
	d := New(libmlx5.InitObj, os.LookupEnv, true)
	w.cqes[0] = unsafe.Slice((*byte)(pointer(in.Buf)), int(in.CQECnt*in.CQESize))
	in.Buf = w.shadow(t, "completions", in.Buf, len(w.cqes[0]))
	w.cqes[1] = w.areas[0].shadows
	in.DBRec = ibv.Ptr[ibv.BE32](w.shadow(t, "completion queue's record", uintptr(in.DBRec), 8))
	in.CQUAR = w.shadow(t, "completion queue's doorbell", in.CQUAR, mlx5dv.MLX5_CQ_DOORBELL+8)
	w.in = newCompletionQueue(d, w.cq, in)

	out.SQ.Buf = w.shadow(t, "send queue", out.SQ.Buf, int(out.SQ.WQECnt)*block)
	if out.RQ.WQECnt != 0 {
		out.RQ.Buf = w.shadow(t, "receive queue", out.RQ.Buf, int(out.RQ.WQECnt*out.RQ.Stride))
	}
	out.DBRec = ibv.Ptr[ibv.BE32](w.shadow(t, "records", uintptr(out.DBRec), 8))
	out.BF.Reg = w.shadow(t, "register", out.BF.Reg, 1024)
	w.of = &queuePair{device: d, c: w.qp, sendCQ: w.in, recvCQ: w.in}
	register := d.use(w.of, out)
	t.Cleanup(func() { register.leave(w.of) }) // the address will be reused
	w.of.send.init(w.of, out, w.cap, everyOne, register)
	var err error
	w.of.send.address, err = d.addressIn(w.qp.Context.Deref())
	require.NoError(t, err)
	w.of.recv.init(w.of, out, w.cap)
	w.in.add(w.of)
}

// compare returns the area and offset at which libmlx5 and the shadow differ.
func (w *twin) compare() (where string, at int) {
	for _, a := range w.areas {
		if !bytes.Equal(a.c, a.shadows) {
			for i := range a.c {
				if a.c[i] != a.shadows[i] {
					return a.name, i
				}
			}
		}
	}
	return "", 0
}

// equal fails the test if libmlx5 and the shadow differ.
func (w *twin) equal(t *testing.T, what string) {
	t.Helper()
	if where, at := w.compare(); where != "" {
		for _, a := range w.areas {
			if a.name == where {
				at &^= 15
				t.Fatalf("%s: %s at %#x: libmlx5 % x, Go % x", what, where, at, a.c[at:at+16], a.shadows[at:at+16])
			}
		}
	}
}
