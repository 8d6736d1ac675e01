// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// efaUsers returns users of libefa and of package native over an emulated EFA adapter, if this is a process of a test
// that runs over adapters of an older and a newer kind. If still is set, the device executes only commands.
func efaUsers(t *testing.T, still bool) (users [2]*user, inside bool) {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return [2]*user{newUser(t, nil), newUser(t, backend(t))}, true
	}
	for _, more := range []string{"0", longNumbers} {
		env := []string{envCapabilities + "=" + more}
		if still {
			env = append(env, "GOVERBS_EMULATED_STILL=1")
		}
		again(t, emulated(t).As(EFA), pathNative, env...)
	}
	return users, false
}

// efaQP creates a queue pair with ibv_create_qp, or an SRD queue pair.
func (u *user) efaQP(kind ibv.QPType, cap ibv.QPCap, own efadv.QPInitAttr) (*ibv.QP, ibv.QPCap, error) {
	return u.efaSignaledQP(kind, cap, own, 0)
}

// efaSignaledQP is efaQP with sq_sig_all.
func (u *user) efaSignaledQP(kind ibv.QPType, cap ibv.QPCap, own efadv.QPInitAttr, everyOne int32) (*ibv.QP, ibv.QPCap,
	error) {
	if kind == ibv.QPT_UD {
		a := ibv.QPInitAttr{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: kind, Cap: cap, SQSigAll: everyOne}
		qp, err := verbs.CreateQP(u.pd, &a)
		return qp, a.Cap, err
	}
	x := ibv.QPInitAttrEx{SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), QPType: kind, Cap: cap, PD: ibv.PtrTo(u.pd),
		SQSigAll: everyOne, CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ibv.QP_EX_WITH_SEND |
			ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ | ibv.QP_EX_WITH_RDMA_WRITE |
			ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM}
	qp, err := libefa.CreateQPEx(u.context, &x, &own, uint32(unsafe.Sizeof(own)))
	return qp, x.Cap, err
}

func (u *user) efaQueues(qp *ibv.QP) (s, r efadv.WQAttr) {
	u.t.Helper()
	require.NoError(u.t, libefa.QueryQPWQs(qp, &s, &r, uint32(unsafe.Sizeof(s))))
	return s, r
}

// efaSizes describes the queues of a queue pair, without their addresses.
func (u *user) efaSizes(kind ibv.QPType, cap ibv.QPCap, flags efadv.QPFlags) string {
	qp, got, err := u.efaQP(kind, cap, efadv.QPInitAttr{Flags: flags})
	if err != nil {
		return "none"
	}
	s, r := u.efaQueues(qp)
	s.Buffer, s.Doorbell, r.Buffer, r.Doorbell = 0, 0, 0, 0
	require.NoError(u.t, verbs.DestroyQP(qp))
	return fmt.Sprintf("%+v\n%+v\n%+v", got, s, r)
}

// TestNativeEFASizes compares the capacities and sizes of queues that package native and libefa create.
func TestNativeEFASizes(t *testing.T) {
	users, inside := efaUsers(t, false)
	if !inside {
		return
	}
	r := rand.New(rand.NewPCG(1, 2))
	some := 0
	for range 2000 {
		kind := []ibv.QPType{ibv.QPT_UD, ibv.QPT_DRIVER}[r.IntN(2)]
		cap := ibv.QPCap{MaxSendWR: r.Uint32N(1 << r.IntN(15)), MaxRecvWR: r.Uint32N(1 << r.IntN(17)),
			MaxSendSGE: r.Uint32N(4), MaxRecvSGE: 1 + r.Uint32N(5), MaxInlineData: r.Uint32N(1 << r.IntN(8))}
		flags := efadv.QPFlags(r.UintN(1 << r.IntN(4)))
		c := users[0].efaSizes(kind, cap, flags)
		require.Equal(t, c, users[1].efaSizes(kind, cap, flags), "%v %+v %v", kind, cap, flags)
		if c != "none" {
			some++
		}
	}
	assert.Greater(t, some, 300)
}

// nativeEFATests lists EFA tests that also run over package native.
var nativeEFATests = []string{"TestEFAQueries", "TestEFADatagrams", "TestSRD", "TestSRDOrder", "TestSRDFailures",
	"TestUnsolicited", "TestSourceGID", "TestEFAExtendedQueues", "TestEFADrain", "TestEFALimits", "TestEFAWide",
	"TestEFADestroyedQueuePair", "TestSRDStorm"}

// TestNativeEFA runs nativeEFATests over package native.
func TestNativeEFA(t *testing.T) {
	e := emulated(t)
	program := testProgram(t, e, ".")
	for _, env := range []string{envCapabilities + "=0", envCapabilities + "=" + longNumbers, "GOVERBS_EFA_SUB_QUEUES=1"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := e.As(EFA).Command(ctx, program, "-test.v", "-test.timeout=100s",
			"-test.run=^("+strings.Join(nativeEFATests, "|")+")$")
		cmd.Env = append(cmd.Env, envInside+"="+pathNative, envRelease+"="+e.libraries.Release, env)
		out, err := cmd.CombinedOutput()
		cancel()
		require.NoError(t, err, "%s: %s", env, out)
		for _, test := range nativeEFATests {
			assert.Contains(t, string(out), "--- PASS: "+test+" (", env)
		}
	}
}

// deviceOf returns what the generic verbs and libefa's verbs report about the device.
func (u *user) deviceOf() string {
	var device ibv.DeviceAttr
	require.NoError(u.t, verbs.QueryDevice(u.context, &device))
	var ex ibv.DeviceAttrEx
	require.NoError(u.t, verbs.QueryDeviceEx(u.context, nil, &ex))
	var own efadv.DeviceAttr
	require.NoError(u.t, libefa.QueryDevice(u.context, &own, uint32(unsafe.Sizeof(own))))
	var cq efadv.CQAttr
	require.NoError(u.t, libefa.QueryCQ(u.cq, &cq, uint32(unsafe.Sizeof(cq))))
	cq.Buffer, cq.Doorbell = 0, 0
	return fmt.Sprintf("%+v\n%+v\n%+v\n%+v", device, ex, own, cq)
}

// TestNativeEFADevice compares the attributes of the device.
func TestNativeEFADevice(t *testing.T) {
	users, inside := efaUsers(t, false)
	if !inside {
		return
	}
	require.Equal(t, users[0].deviceOf(), users[1].deviceOf())
	assert.Equal(t, ibv.TRANSPORT_UNSPECIFIED, users[1].context.Device.Deref().TransportType)
}

// TestNativeEFAGenerations creates as many queue pairs as there are queue pair numbers, and one more. Request numbers
// distinguish queue pairs with the same number.
func TestNativeEFAGenerations(t *testing.T) {
	users, inside := efaUsers(t, true)
	if !inside {
		return
	}
	const times = 2
	var ids [2][times][2]uint16
	for i, u := range users {
		ah, err := verbs.CreateAH(u.pd, &ibv.AHAttr{PortNum: 1, IsGlobal: 1})
		require.NoError(t, err)
		first := uint32(0)
		for found := 0; found < times; {
			qp, _, err := u.efaQP(ibv.QPT_UD, ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
				efadv.QPInitAttr{})
			require.NoError(t, err)
			if first == 0 {
				first = qp.QPNum
			}
			if qp.QPNum == first {
				p := &prepared{qp: qp}
				p.ready(t)
				ids[i][found] = p.post(t, u, ah, 1)
				found++
			}
			require.NoError(t, verbs.DestroyQP(qp))
		}
		require.NoError(t, verbs.DestroyAH(ah))
	}
	assert.Equal(t, ids[0], ids[1])
	assert.NotEqual(t, ids[0][0], ids[0][1])
}

// prepared is a queue pair in RTS with some sends and receives, and with its own completion queue.
type prepared struct {
	cq          *ibv.CQEx
	qp          *ibv.QP
	ids         [2][]uint16 // numbers of the sends and receives in the queues
	completions []byte
	bell        *uint32
	wrote       uint32
}

const preparedDepth = 8

func (u *user) prepare(own efadv.CQInitAttr) *prepared {
	u.t.Helper()
	p := &prepared{}
	channel, err := verbs.CreateCompChannel(u.context)
	require.NoError(u.t, err)
	u.t.Cleanup(func() { assert.NoError(u.t, verbs.DestroyCompChannel(channel)) })
	p.cq, err = libefa.CreateCQ(u.context, &ibv.CQInitAttrEx{CQE: preparedDepth, Channel: ibv.PtrTo(channel),
		WCFlags: ibv.WC_STANDARD_FLAGS}, &own, uint32(unsafe.Sizeof(own)))
	require.NoError(u.t, err)
	cq := verbs.CQExToCQ(p.cq)
	u.t.Cleanup(func() { assert.NoError(u.t, verbs.DestroyCQ(cq)) })
	on := *u
	on.cq = cq
	p.qp, _, err = on.efaQP(ibv.QPT_DRIVER, ibv.QPCap{MaxSendWR: preparedDepth, MaxRecvWR: preparedDepth, MaxSendSGE: 1,
		MaxRecvSGE: 1}, efadv.QPInitAttr{})
	require.NoError(u.t, err)
	u.t.Cleanup(func() { assert.NoError(u.t, verbs.DestroyQP(p.qp)) })
	p.ready(u.t)
	var has efadv.CQAttr
	require.NoError(u.t, libefa.QueryCQ(cq, &has, uint32(unsafe.Sizeof(has))))
	page := unsafe.Slice(has.Buffer.Deref(), os.Getpagesize())
	p.completions = page[:has.EntrySize*has.NumEntries]
	require.NoError(u.t, unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE))
	p.bell = has.Doorbell.Deref()
	return p
}

func (p *prepared) ready(t *testing.T) {
	t.Helper()
	attr := ibv.QPAttr{PortNum: 1, QKey: key}
	for j, mask := range []ibv.QPAttrMask{ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_QKEY, 0, ibv.QP_SQ_PSN} {
		attr.QPState = ibv.QPS_INIT + ibv.QPState(j)
		require.NoError(t, verbs.ModifyQP(p.qp, &attr, ibv.QP_STATE|mask))
	}
}

// post posts a send and a receive, and returns their numbers.
func (p *prepared) post(t *testing.T, u *user, ah *ibv.AH, id uint64) (numbers [2]uint16) {
	t.Helper()
	list := make([]ibv.SGE, 1)
	wr := &ibv.SendWR{WRID: id, Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED, SGList: ibv.PtrTo(&list[0]), NumSGE: 1}
	*wr.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: 5, RemoteQKey: key}
	require.NoError(t, verbs.PostSend(p.qp, wr, new(ibv.Ptr[ibv.SendWR])))
	recv := &ibv.RecvWR{WRID: id + 1, SGList: ibv.PtrTo(&list[0]), NumSGE: 1}
	require.NoError(t, verbs.PostRecv(p.qp, recv, new(ibv.Ptr[ibv.RecvWR])))
	s, r := u.efaQueues(p.qp)
	for i, q := range []struct {
		efadv.WQAttr
		at uint32
	}{{s, 0}, {r, 8}} {
		last := (*q.Doorbell.Deref() - 1) % q.NumEntries
		b := unsafe.Slice(q.Buffer.Deref(), q.EntrySize*q.NumEntries)
		numbers[i] = *(*uint16)(unsafe.Pointer(&b[last*q.EntrySize+q.at]))
	}
	return numbers
}

// complete writes a completion as the device does, and returns the fields that polls read.
func (p *prepared) complete(t *testing.T, e []byte, extended bool, of *efadv.CQ) string {
	t.Helper()
	size := uint32(len(e))
	slot := p.completions[p.wrote*size%uint32(len(p.completions)):][:size]
	lap := p.wrote * size / uint32(len(p.completions))
	p.wrote++
	copy(slot, e)
	slot[3] = e[3]&^1 | uint8(^lap&1)
	if !extended {
		var wc ibv.WC
		n, err := verbs.PollCQ(verbs.CQExToCQ(p.cq), 1, &wc)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		wc.QPNum -= p.qp.QPNum
		return fmt.Sprintf("%+v %x, doorbell %x", wc, *(*[unsafe.Sizeof(wc)]byte)(unsafe.Pointer(&wc)), *p.bell)
	}
	require.NoError(t, verbs.StartPoll(p.cq, new(ibv.PollCQAttr)))
	opcode, err := verbs.WCReadOpcode(p.cq)
	require.NoError(t, err)
	number, err := verbs.WCReadQPNum(p.cq)
	text := fmt.Sprint(p.cq.WRID, p.cq.Status, opcode, number-p.qp.QPNum, err)
	for _, read := range []func(*ibv.CQEx) (uint32, error){verbs.WCReadVendorErr, verbs.WCReadByteLen, verbs.WCReadSrcQP,
		verbs.WCReadSLID} {
		v, err := read(p.cq)
		text += fmt.Sprint(" ", v, err)
	}
	flags, err := verbs.WCReadWCFlags(p.cq)
	require.NoError(t, err)
	imm, err := verbs.WCReadImmData(p.cq)
	require.NoError(t, err)
	if flags&ibv.WC_WITH_IMM == 0 {
		imm = 0
	}
	var from ibv.GID
	failed := libefa.WCReadSGID(of, &from) != nil
	unsolicited, err := libefa.WCIsUnsolicited(of)
	require.NoError(t, err)
	require.NoError(t, verbs.EndPoll(p.cq))
	return fmt.Sprint(text, flags, imm.Host(), failed, from, unsolicited, *p.bell)
}

// TestNativeEFACompletions writes random completions to queues of libefa and of package native, and compares what polls
// read through both interfaces, and the doorbells.
func TestNativeEFACompletions(t *testing.T) {
	users, inside := efaUsers(t, true)
	if !inside {
		return
	}
	own := efadv.CQInitAttr{WCFlags: efadv.WC_EX_WITH_SGID | efadv.WC_EX_WITH_IS_UNSOLICITED}
	var queues [2]*prepared
	var ahs [2]*ibv.AH
	var cqs [2]*efadv.CQ
	for i, u := range users {
		queues[i] = u.prepare(own)
		var err error
		ahs[i], err = verbs.CreateAH(u.pd, &ibv.AHAttr{PortNum: 1, IsGlobal: 1})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, verbs.DestroyAH(ahs[i])) })
		cqs[i], err = libefa.CQFromIBVCQEx(queues[i].cq)
		require.NoError(t, err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 3000 {
		id := uint64(2 * i)
		var e [32]byte
		for j := range e {
			e[j] = uint8(r.Uint32())
		}
		e[2] = uint8(i) // first, each status once
		isRecv := r.IntN(2)
		op := r.IntN(3)
		e[3] = uint8(1+isRecv)<<1 | uint8(op)<<4
		if isRecv == 1 {
			e[3] |= uint8(r.IntN(2)) << 3
			if op == 2 {
				e[3] |= uint8(r.IntN(2)) << 7
			}
			if r.IntN(2) == 0 {
				e[8], e[9] = 0xff, 0xff
			}
		}
		var texts [2]string
		extended, armed, solicited := r.IntN(2) == 0, r.IntN(4) == 0, r.IntN(2)
		for k, p := range queues {
			numbers := p.post(t, users[k], ahs[k], id)
			if armed {
				texts[k] = fmt.Sprintf("armed %d "+
					"%x\n", code(verbs.ReqNotifyCQ(verbs.CQExToCQ(p.cq), solicited)), *p.bell)
			}
			for _, which := range []int{isRecv, 1 - isRecv} {
				c := e
				if which != isRecv { // the other request completes successfully
					c = [32]byte{3: uint8(1+which) << 1}
				}
				*(*uint16)(unsafe.Pointer(&c[0])) = numbers[which]
				*(*uint16)(unsafe.Pointer(&c[4])) = uint16(p.qp.QPNum)
				if which == 0 { // upper bits of its number
					*(*[6]byte)(c[6:]) = [6]byte{}
				}
				if c[3]&(1<<7) != 0 { // the receive remains
					p.complete(t, c[:], extended, cqs[k])
					c[3] &^= 1 << 7
				}
				texts[k] += p.complete(t, c[:], extended, cqs[k]) + "\n"
			}
		}
		require.Equal(t, texts[0], texts[1], "%x", e)
	}
}

// TestNativeEFAAllocations checks that posting and polling on EFA do not allocate.
func TestNativeEFAAllocations(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t).As(EFA), pathNative, envRelease+"=65.0")
		return
	}
	g := newSRD(t, 0)
	ah, qpn, qkey := g.to(1)
	a := g.qps[0]
	sends, err := rdma.NewSendBatch(1, 1, 0)
	keep(t, sends, err)
	sends.Send(1).Add(g.mrs[0].SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
	recvs, err := rdma.NewRecvBatch(1, 1)
	keep(t, recvs, err)
	recvs.Recv(2).Add(g.mrs[1].SGE(0, 8))
	wcs := make([]ibv.WC, 1)
	poll := func(cq *rdma.CQ) {
		for {
			n, err := cq.Poll(wcs)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				return
			}
		}
	}
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		if _, err := g.qps[1].PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		if _, err := a.PostSend(sends); err != nil {
			t.Fatal(err)
		}
		poll(a.SendCQ())
		poll(g.qps[1].RecvCQ())
	}))
}
