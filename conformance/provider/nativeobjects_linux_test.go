// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// user creates queues by libmlx5 or by package native.
type user struct {
	t       *testing.T
	backend runtime.Backend
	context *ibv.Context
	pd      *ibv.PD
	cq      *ibv.CQ
	xrcd    *ibv.XRCD // nil if the device does not support XRC
}

func newUser(t *testing.T, b runtime.Backend) *user {
	t.Helper()
	var n int32
	list, err := verbs.From{Backend: b}.GetDeviceList(&n)
	require.NoError(t, err)
	u := &user{t: t, backend: b}
	u.context, err = verbs.OpenDevice(list.Deref())
	require.NoError(t, err)
	verbs.FreeDeviceList(list)
	t.Cleanup(func() { assert.NoError(t, verbs.CloseDevice(u.context)) })
	u.pd, err = verbs.AllocPD(u.context)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DeallocPD(u.pd)) })
	u.cq, err = verbs.CreateCQ(u.context, 15, 0, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DestroyCQ(u.cq)) })
	u.xrcd, err = verbs.OpenXRCD(u.context, &ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
		CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
	if errors.Is(err, syscall.EOPNOTSUPP) { // EFA
		return u
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.CloseXRCD(u.xrcd)) })
	return u
}

// numbers describes a queue, without its addresses.
type numbers struct {
	failed        bool
	cap           ibv.QPCap
	sq, rq        [2]uint32
	apart         uintptr // distance from the receive queue to the send queue
	register, cqn uint32
}

func (u *user) init(obj *mlx5dv.Obj, kind mlx5dv.ObjType) {
	u.t.Helper()
	require.NoError(u.t, libmlx5.From{Backend: u.backend}.InitObj(obj, kind))
}

// qp describes a queue pair. Without operations, it is not extended. Headers of segmented packets have up to header
// bytes.
func (u *user) qp(kind ibv.QPType, cap ibv.QPCap, ops ibv.QPCreateSendOpsFlags, header uint16) (n numbers) {
	u.t.Helper()
	a := ibv.QPInitAttrEx{SendOpsFlags: ops, SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: kind, Cap: cap,
		PD: ibv.PtrTo(u.pd), CompMask: ibv.QP_INIT_ATTR_PD}
	if kind == ibv.QPT_XRC_RECV {
		a.XRCD, a.CompMask = ibv.PtrTo(u.xrcd), ibv.QP_INIT_ATTR_XRCD
	}
	if header > 0 {
		a.MaxTSOHeader, a.CompMask = header, a.CompMask|ibv.QP_INIT_ATTR_MAX_TSO_HEADER
	}
	if ops != 0 {
		a.CompMask |= ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	}
	create := verbs.CreateQPEx
	if kind == ibv.QPT_DRIVER {
		create = func(c *ibv.Context, a *ibv.QPInitAttrEx) (*ibv.QP, error) {
			return libmlx5.CreateQP(c, a, &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC,
				DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCI}})
		}
	}
	qp, err := create(u.context, &a)
	if err != nil {
		return numbers{failed: true}
	}
	var out mlx5dv.QP
	u.init(&mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(qp), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_QP)
	n = numbers{cap: a.Cap, sq: [2]uint32{out.SQ.WQECnt, out.SQ.Stride}, rq: [2]uint32{out.RQ.WQECnt, out.RQ.Stride},
		apart: out.SQ.Buf - out.RQ.Buf, register: out.BF.Size}
	if kind == ibv.QPT_RAW_PACKET {
		n.apart = 0 // in different buffers
	}
	if n.sq[0] == 0 {
		n.sq[1] = 0 // libmlx5 has 1
	}
	if n.rq[0] == 0 {
		n.rq[1] = 0
	}
	require.NoError(u.t, verbs.DestroyQP(qp))
	return n
}

// TestNativeSizes compares the capacities and sizes of queues that package native and libmlx5 create.
func TestNativeSizes(t *testing.T) {
	if !insideReleases(t, pathNative) {
		return
	}
	users := [2]*user{newUser(t, nil), newUser(t, backend(t))}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		kind := []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV, ibv.QPT_DRIVER,
			ibv.QPT_RAW_PACKET}[r.IntN(7)]
		cap := ibv.QPCap{MaxSendWR: r.Uint32N(1 << r.IntN(13)), MaxRecvWR: r.Uint32N(1 << r.IntN(13)),
			MaxSendSGE: r.Uint32N(1 << r.IntN(6)), MaxRecvSGE: r.Uint32N(1 << r.IntN(6)),
			MaxInlineData: r.Uint32N(1 << r.IntN(11))}
		if kind == ibv.QPT_XRC_SEND || kind == ibv.QPT_XRC_RECV {
			cap.MaxRecvWR, cap.MaxRecvSGE = 0, 0 // libmlx5 reserves memory for receives that are not possible
		}
		ops := ibv.QPCreateSendOpsFlags(0)
		if kind != ibv.QPT_XRC_RECV && r.IntN(2) == 0 {
			ops = ibv.QPCreateSendOpsFlags(r.Uint64N(1 << r.IntN(15)))
		}
		header := uint16(0)
		if kind == ibv.QPT_RAW_PACKET {
			header = uint16(r.IntN(1 << r.IntN(11)))
		}
		c, own := users[0].qp(kind, cap, ops, header), users[1].qp(kind, cap, ops, header)
		if !assert.Equal(t, c, own, "%v %+v %v %d", kind, cap, ops, header) {
			t.FailNow()
		}
	}
}

// completionSizes returns the sizes of a completion queue for n completions, before and after it was resized.
func (u *user) completionSizes(n, resized int) (sizes [4]uint32) {
	u.t.Helper()
	cq, err := verbs.CreateCQ(u.context, n, 0, nil, 0)
	if err != nil {
		return sizes
	}
	defer func() { require.NoError(u.t, verbs.DestroyCQ(cq)) }()
	count := func() uint32 {
		var out mlx5dv.CQ
		u.init(&mlx5dv.Obj{CQ: mlx5dv.ObjCQ{In: ibv.PtrTo(cq), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_CQ)
		return out.CQECnt * out.CQESize
	}
	sizes[0], sizes[1] = uint32(cq.CQE), count()
	if verbs.ResizeCQ(cq, resized) == nil {
		sizes[2], sizes[3] = uint32(cq.CQE), count()
	}
	return sizes
}

// srq returns the sizes of a shared receive queue.
func (u *user) srq(kind ibv.SRQType, attr ibv.SRQAttr) (sizes [5]uint32) {
	u.t.Helper()
	a := ibv.SRQInitAttrEx{Attr: attr, SRQType: kind, PD: ibv.PtrTo(u.pd),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD}
	if kind == ibv.SRQT_XRC {
		a.XRCD, a.CQ = ibv.PtrTo(u.xrcd), ibv.PtrTo(u.cq)
		a.CompMask |= ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ
	}
	srq, err := verbs.CreateSRQEx(u.context, &a)
	if err != nil {
		return sizes
	}
	var out mlx5dv.SRQ
	u.init(&mlx5dv.Obj{SRQ: mlx5dv.ObjSRQ{In: ibv.PtrTo(srq), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_SRQ)
	sizes = [5]uint32{a.Attr.MaxWR, a.Attr.MaxSGE, out.Stride, out.Head, out.Tail}
	require.NoError(u.t, verbs.DestroySRQ(srq))
	return sizes
}

// TestNativeOtherSizes is TestNativeSizes for completion queues, with each size of a completion, and for shared receive
// queues.
func TestNativeOtherSizes(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, e := range releases(t) {
			for _, size := range []string{"64", "128", "96"} {
				again(t, e, pathNative, envCompletionSize+size)
			}
		}
		return
	}
	if os.Getenv("MLX5_CQE_SIZE") == "96" {
		for _, b := range []runtime.Backend{nil, backend(t)} {
			var n int32
			list, err := verbs.From{Backend: b}.GetDeviceList(&n)
			require.NoError(t, err)
			c, err := verbs.OpenDevice(list.Deref())
			require.NoError(t, err)
			_, err = verbs.CreateCQ(c, 15, 0, nil, 0)
			assert.ErrorIs(t, err, syscall.EINVAL)
		}
		return
	}
	users := [2]*user{newUser(t, nil), newUser(t, backend(t))}
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		n, resized := r.IntN(1<<r.IntN(18)), r.IntN(1<<r.IntN(18))
		require.Equal(t, users[0].completionSizes(n, resized), users[1].completionSizes(n, resized), "%d, %d", n, resized)
		attr := ibv.SRQAttr{MaxWR: r.Uint32N(1 << r.IntN(17)), MaxSGE: r.Uint32N(1 << r.IntN(6))}
		for _, kind := range []ibv.SRQType{ibv.SRQT_BASIC, ibv.SRQT_XRC} {
			require.Equal(t, users[0].srq(kind, attr), users[1].srq(kind, attr), "%v %+v", kind, attr)
		}
	}
	for _, n := range []int{-1, 0, 1 << 22, 1<<31 - 1} {
		require.Equal(t, users[0].completionSizes(n, 1), users[1].completionSizes(n, 1), "%d", n)
		require.Equal(t, users[0].completionSizes(1, n), users[1].completionSizes(1, n), "%d", n)
	}
}

// TestNativeXRCMasks compares which attributes XRC requires.
func TestNativeXRCMasks(t *testing.T) {
	if !insideReleases(t, pathNative) {
		return
	}
	users := [2]*user{newUser(t, nil), newUser(t, backend(t))}
	type answer struct {
		of     string
		mask   uint32
		failed bool
		code   syscall.Errno
	}
	var answers [2][]answer
	for i, u := range users {
		note := func(of string, mask uint32, err error) {
			var errno syscall.Errno
			errors.As(err, &errno)
			answers[i] = append(answers[i], answer{of, mask, err != nil, errno})
		}
		for mask := range uint32(8) {
			x, err := verbs.OpenXRCD(u.context, &ibv.XRCDInitAttr{FD: -1, CompMask: ibv.XRCDInitAttrMask(mask)})
			if note("domain", mask, err); err == nil {
				require.NoError(t, verbs.CloseXRCD(x))
			}
		}
		for mask := uint32(ibv.SRQ_INIT_ATTR_TYPE); mask < 128; mask += 2 { // libmlx5 ignores masks without a type
			srq, err := verbs.CreateSRQEx(u.context, &ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 3, MaxSGE: 1},
				SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(u.pd), XRCD: ibv.PtrTo(u.xrcd), CQ: ibv.PtrTo(u.cq),
				CompMask: ibv.SRQInitAttrMask(mask)})
			if note("shared receive queue", mask, err); err == nil {
				require.NoError(t, verbs.DestroySRQ(srq))
			}
		}
		for _, kind := range []ibv.QPType{ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV} {
			for mask := range uint32(4) {
				qp, err := verbs.CreateQPEx(u.context, &ibv.QPInitAttrEx{QPType: kind, PD: ibv.PtrTo(u.pd),
					XRCD: ibv.PtrTo(u.xrcd), SendCQ: ibv.PtrTo(u.cq), CompMask: ibv.QPInitAttrMask(mask)})
				if note(kind.String(), mask, err); err == nil {
					require.NoError(t, verbs.DestroyQP(qp))
				}
			}
		}
	}
	for i, c := range answers[0] {
		own := answers[1][i]
		if c.failed && c.code == 0 { // libmlx5 does not set errno
			own.code = 0
		}
		assert.Equal(t, c, own)
	}
}

// av returns the address of a handle in requests, or nil if the handle cannot be created.
func (u *user) av(attr ibv.AHAttr) *mlx5dv.MLX5WQEAV {
	u.t.Helper()
	ah, err := verbs.CreateAH(u.pd, &attr)
	if err != nil {
		return nil
	}
	var out mlx5dv.AH
	u.init(&mlx5dv.Obj{AH: mlx5dv.ObjAH{In: ibv.PtrTo(ah), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_AH)
	av := *out.AV.Deref()
	require.NoError(u.t, verbs.DestroyAH(ah))
	return &av
}

// TestNativeAddresses compares address handles that package native and libmlx5 create, on Ethernet and InfiniBand.
func TestNativeAddresses(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, e := range releases(t) {
			again(t, e, pathNative)
			again(t, e, pathNative, envInfiniBand)
		}
		return
	}
	users := [2]*user{newUser(t, nil), newUser(t, backend(t))}
	r := rand.New(rand.NewPCG(3, 4))
	some := 0
	for range 500 {
		attr := ibv.AHAttr{PortNum: uint8(1 + r.IntN(20)/19), IsGlobal: uint8(r.IntN(2)), DLID: uint16(r.Uint32()),
			SL: uint8(r.IntN(16)), SrcPathBits: uint8(r.IntN(256)), StaticRate: ibv.Rate(r.IntN(26)),
			GRH: ibv.GlobalRoute{SGIDIndex: uint8(r.IntN(2)), FlowLabel: 1 + r.Uint32N(1<<20-1), HopLimit: uint8(r.Uint32()),
				TrafficClass: uint8(r.Uint32())}}
		*attr.GRH.DGID.Raw() = [16]uint8{0xfe, 0x80, 15: uint8(r.Uint32())}
		c, own := users[0].av(attr), users[1].av(attr)
		require.Equal(t, c, own, "%+v", attr)
		if c != nil {
			some++
		}
	}
	assert.Greater(t, some, 100)
}

// TestNativeRegisters creates more queue pairs than a process has doorbell registers, and compares which of them share
// a register.
func TestNativeRegisters(t *testing.T) {
	if !insideReleases(t, pathNative) {
		return
	}
	const many = 40
	var places [2][]place
	for i, u := range [2]*user{newUser(t, nil), newUser(t, backend(t))} {
		seen := map[uintptr]int{}
		for range many {
			a := ibv.QPInitAttr{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: ibv.QPT_RC,
				Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
			qp, err := verbs.CreateQP(u.pd, &a)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, verbs.DestroyQP(qp)) })
			var out mlx5dv.QP
			u.init(&mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(qp), Out: ibv.PtrTo(&out)}}, mlx5dv.OBJ_QP)
			if _, ok := seen[out.BF.Reg]; !ok {
				seen[out.BF.Reg] = len(seen)
			}
			places[i] = append(places[i], place{seen[out.BF.Reg], out.BF.Reg % 4096, out.BF.Size})
		}
	}
	assert.Equal(t, places[0], places[1])
}

// TestNativeThreadDomains creates and destroys thread domains and queue pairs in random order, and compares the
// doorbell registers. Objects in use cannot be destroyed.
func TestNativeThreadDomains(t *testing.T) {
	if !insideReleases(t, pathNative) {
		return
	}
	var texts [2]string
	for i, u := range [2]*user{newUser(t, nil), newUser(t, backend(t))} {
		texts[i] = u.threadDomains(rand.New(rand.NewPCG(7, 8)))
	}
	assert.Equal(t, texts[0], texts[1])
	assert.Greater(t, strings.Count(texts[0], "queue pair"), 50)
	assert.Contains(t, texts[0], "parent domain in use: 16")
}

// threadDomains makes random calls and describes the results.
func (u *user) threadDomains(r *rand.Rand) string {
	u.t.Helper()
	type parent struct {
		td  *ibv.TD
		pd  *ibv.PD
		qps []*ibv.QP
	}
	var out strings.Builder
	code := func(what string, err error) {
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Fprintf(&out, "%s: %d\n", what, int(errno))
	}
	seen := map[uintptr]int{}
	var all []*parent
	end := func(p *parent) {
		code("thread domain in use", verbs.DeallocTD(p.td))
		if len(p.qps) > 0 {
			code("parent domain in use", verbs.DeallocPD(p.pd))
		}
		for _, qp := range p.qps {
			require.NoError(u.t, verbs.DestroyQP(qp))
		}
		code("parent domain", verbs.DeallocPD(p.pd))
		code("thread domain", verbs.DeallocTD(p.td))
	}
	for range 200 {
		switch kind := r.IntN(4); {
		case kind == 0 || len(all) == 0:
			td, err := verbs.AllocTD(u.context, &ibv.TDInitAttr{})
			require.NoError(u.t, err)
			pd, err := verbs.AllocParentDomain(u.context,
				&ibv.ParentDomainInitAttr{PD: ibv.PtrTo(u.pd), TD: ibv.PtrTo(td)})
			require.NoError(u.t, err)
			code("domain in use", verbs.DeallocPD(u.pd))
			all = append(all, &parent{td: td, pd: pd})
		case kind == 1:
			i := r.IntN(len(all))
			end(all[i])
			all = slices.Delete(all, i, i+1)
		default:
			p := all[r.IntN(len(all))]
			pd := p.pd
			if kind == 2 && r.IntN(2) == 0 {
				pd = u.pd
			}
			qp, err := verbs.CreateQP(pd, &ibv.QPInitAttr{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq),
				QPType: ibv.QPT_RC, Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}})
			require.NoError(u.t, err)
			var dv mlx5dv.QP
			u.init(&mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(qp), Out: ibv.PtrTo(&dv)}}, mlx5dv.OBJ_QP)
			if _, ok := seen[dv.BF.Reg]; !ok {
				seen[dv.BF.Reg] = len(seen)
			}
			fmt.Fprintln(&out, "queue pair", pd == p.pd, qp.PD == ibv.PtrTo(pd), seen[dv.BF.Reg], dv.BF.Reg%4096,
				dv.BF.Size)
			if pd == u.pd {
				u.t.Cleanup(func() { assert.NoError(u.t, verbs.DestroyQP(qp)) })
			} else {
				p.qps = append(p.qps, qp)
			}
		}
	}
	for _, p := range all {
		end(p)
	}
	_, err := verbs.AllocTD(u.context, &ibv.TDInitAttr{CompMask: 1})
	code("thread domain of an unknown mask", err)
	_, err = verbs.AllocParentDomain(u.context, &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(u.pd), CompMask: 1 << 20})
	code("parent domain of an unknown mask", err)
	_, err = verbs.AllocParentDomain(u.context, &ibv.ParentDomainInitAttr{})
	code("parent domain of nothing", err)
	pd, err := verbs.AllocParentDomain(u.context, &ibv.ParentDomainInitAttr{PD: ibv.PtrTo(u.pd)})
	code("parent domain without a thread domain", err)
	code("its end", verbs.DeallocPD(pd))
	return out.String()
}

// place describes a doorbell register: its number in order of first use, its offset in its page, and its size.
type place struct {
	number int
	offset uintptr
	size   uint32
}

// nativeTests lists tests of objects that also run over package native.
var nativeTests = []string{"TestObjects", "TestDatagrams", "TestSharedReceives", "TestFailure", "TestResetUnderway",
	"TestSRQLimit", "TestDrainBeforeRTS", "TestXRC", "TestXRCClosed"}

// TestNativeResized runs TestResized over package native.
func TestNativeResized(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathNative)
		return
	}
	TestResized(t)
}

// TestNativeObjects runs nativeTests over package native, through its slots and through mlx5.NewPath. The commands have
// the sizes of libibverbs and libmlx5.
func TestNativeObjects(t *testing.T) {
	for _, e := range releases(t) {
		nativeObjects(t, e)
	}
}

func nativeObjects(t *testing.T, e *Emulated) {
	t.Helper()
	for _, size := range []string{"64", "128"} {
		nativeObjectsOf(t, e, size)
	}
}

// envCompletionSize sets the number of bytes of a completion, in libmlx5 and in package native.
const envCompletionSize = "MLX5_CQE_SIZE="

func nativeObjectsOf(t *testing.T, e *Emulated, size string) {
	t.Helper()
	program := testProgram(t, e, ".")
	record := filepath.Join(dir, "record-objects")
	var shapes []map[string]bool
	for _, path := range []string{pathC, pathNative, pathNativeGo} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := e.Command(ctx, program, "-test.v", "-test.timeout=100s",
			"-test.run=^("+strings.Join(nativeTests, "|")+")$")
		cmd.Env = append(cmd.Env, envInside+"="+path, "GOVERBS_RECORD="+record, envCompletionSize+size)
		out, err := cmd.CombinedOutput()
		cancel()
		require.NoError(t, err, "%s, %s: %s", path, e.libraries.Release, out)
		for _, test := range nativeTests {
			assert.Contains(t, string(out), "--- PASS: "+test+" (", path)
		}
		shapes = append(shapes, shapesOf(requests(MLX5, read(t, record), make([]int, len(differences)))))
	}
	assert.Greater(t, len(shapes[0]), 15)
	assert.Equal(t, shapes[0], shapes[1], e.libraries.Release)
	assert.Equal(t, shapes[0], shapes[2], e.libraries.Release)
}

// shapesOf returns the commands in a record with the sizes of their parts.
func shapesOf(record string) map[string]bool {
	shapes := map[string]bool{}
	for _, m := range regexp.MustCompile(`(command .*)\n(  core, \d+ bytes):.*\n(  driver, \d+ bytes):`).
		FindAllStringSubmatch(record, -1) {
		shapes[m[1]+m[2]+m[3]] = true
	}
	return shapes
}

// TestNativeAllocations checks that posting and polling on mlx5 do not allocate.
func TestNativeAllocations(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathNative)
		return
	}
	device := openDevice(t)
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
	b, err := rdma.NewSendBatch(1, 1, 0)
	keep(t, b, err)
	b.Write(1, mrs[1].Address(), mrs[1].RKey()).Add(mrs[0].SGE(0, 8)).Signaled()
	cq, wcs := qps[0].SendCQ(), make([]ibv.WC, 1)
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		if _, err := qps[0].PostSend(b); err != nil {
			t.Fatal(err)
		}
		for {
			if n, err := cq.Poll(wcs); err != nil {
				t.Fatal(err)
			} else if n > 0 {
				break
			}
		}
	}))
}

// TestNativeMissing checks that errors for objects that package native lacks name rdma-core.
func TestNativeMissing(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathNative)
		again(t, emulated(t).As(EFA), pathNative)
		return
	}
	d := openDevice(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	cq, err := d.CreateCQ(8, nil, 0, rdma.QueueOptions{})
	keep(t, cq, err)
	tries := map[string]func() error{
		"hash": func() error {
			_, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RAW_PACKET, PD: pd.Ptr(), SendCQ: cq.Ptr(),
				RecvCQ: cq.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_RX_HASH}, rdma.QueueOptions{})
			return err
		},
		"null region": func() error { _, err := pd.AllocNullMR(); return err },
		"work queue": func() error {
			_, err := d.CreateWQ(&ibv.WQInitAttr{WQType: ibv.WQT_RQ, MaxWR: 1, MaxSGE: 1, PD: pd.Ptr(), CQ: cq.Ptr()},
				rdma.QueueOptions{})
			return err
		},
		"allocators": func() error {
			_, err := d.AllocParentDomain(&ibv.ParentDomainInitAttr{PD: pd.Ptr(),
				CompMask: ibv.PARENT_DOMAIN_INIT_ATTR_ALLOCATORS})
			return err
		},
	}
	if deviceName() == EFA.Device {
		delete(tries, "hash") // of raw packets, which it does not have
		maps.Copy(tries, map[string]func() error{
			"XRC": func() error {
				_, err := d.OpenXRCD(&ibv.XRCDInitAttr{FD: -1, Oflags: syscall.O_CREAT,
					CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS})
				return err
			},
			"counters":           func() error { _, err := d.CreateCounters(nil); return err },
			"completion counter": func() error { _, err := d.CreateCompCntr(&ibv.CompCntrInitAttr{}); return err },
			"flow": func() error {
				qp, err := d.NewUD(rdma.QPParts{})
				keep(t, qp, err)
				_, err = qp.CreateFlow(&ibv.FlowAttr{Port: 1})
				return err
			},
		})
	}
	for name, create := range tries {
		err := create()
		assert.ErrorIs(t, err, rdma.ErrNotSupported, name)
		assert.ErrorContains(t, err, "rdma-core", name)
		t.Log(err)
	}
}
