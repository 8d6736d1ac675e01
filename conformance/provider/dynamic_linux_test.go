// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// TestDynamic checks that a C program over libmlx5 and a Go program over rdma/mlx5 that make the same posts on an
// initiator of dynamic connections send identical commands for its objects to the kernel, leave identical queues and
// doorbells, and read identical completions.
func TestDynamic(t *testing.T) {
	compareDynamic(t, pathC)
}

// TestNativeDynamic is TestDynamic for package native.
func TestNativeDynamic(t *testing.T) { compareDynamic(t, pathNative) }

// TestDynamicPath is TestDynamic for mlx5.NewPath.
func TestDynamicPath(t *testing.T) { compareDynamic(t, pathGo) }

// TestNativeDynamicPath is TestDynamic for mlx5.NewPath on package native.
func TestNativeDynamicPath(t *testing.T) { compareDynamic(t, pathNativeGo) }

func compareDynamic(t *testing.T, path string) {
	t.Helper()
	if os.Getenv(envInside) != "" {
		insideDynamic(t)
		return
	}
	seeds := 3
	if os.Getenv(envAll) != "" {
		seeds = 30
	}
	for _, e := range releases(t) {
		if e.libraries.Release != "44.0" { // its mlx5dv_create_qp has another structure
			sameDynamic(t, e, path, seeds)
		}
	}
}

// otherCommands matches what only one of the programs sends: package rdma queries the device and ports, and moves queue
// pairs to ERR before it destroys them.
var otherCommands = regexp.MustCompile(`^(object|command (0|1|2|80000001|11|19),|` +
	`command (8000001a|1a),.*\n  core, .* 6\n)`)

// ofDynamic returns the commands of objects, and the queues, of a record.
func ofDynamic(record string) string {
	var kept []string
	for _, entry := range regexp.MustCompile(`(?m)^\S.*\n(  .*\n)*`).FindAllString(record, -1) {
		if !otherCommands.MatchString(entry) {
			kept = append(kept, entry)
		}
	}
	return responseAddress.ReplaceAllString(strings.Join(kept, ""), "$1")
}

// sameDynamic compares the programs for a number of seeds, and the data path of the Go program. The program leaves room
// in the queue unless it posts through libmlx5, which writes a request for which the queue has no room over the last
// one.
func sameDynamic(t *testing.T, e *Emulated, path string, seeds int) {
	t.Helper()
	words := [][]string{{compile(t, e, "dynamic")}, {testProgram(t, e, "."), "-test.run=^TestDynamic$"}}
	still := ""
	if path != pathC {
		still = "room"
	}
	record, results := filepath.Join(dir, "record"), filepath.Join(dir, "results")
	for range seeds {
		for _, live := range []string{still, "live"} {
			seed := strconv.FormatUint(uint64(rand.Uint32()), 10)
			var texts [2][2]string
			for i, w := range words {
				if i == 0 {
					w = []string{w[0], seed, live}[:2+min(len(live), 1)]
				}
				cmd := e.Command(t.Context(), w[0], w[1:]...)
				cmd.Env = append(cmd.Env, "GOVERBS_RECORD="+record, envInside+"="+path, envSeed+"="+seed, envLive+"="+live,
					envResults+"="+results)
				if live != "live" {
					cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_STILL=1")
				}
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				texts[i] = [2]string{ofDynamic(read(t, record)), string(out)}
			}
			texts[1][1] = read(t, results)
			for j, what := range []string{"results", "commands and queues"} {
				require.Equal(t, texts[0][1-j], texts[1][1-j], "release %s, %s, %s, seed %s: %s by C and by Go",
					e.libraries.Release, e.libraries.Arch, path, seed, what)
			}
			assert.Greater(t, strings.Count(texts[0][0], "command"), 20)
			assert.Contains(t, texts[0][1], ": posts: 0, ")
			assert.Equal(t, live == "", strings.Contains(texts[0][1], fmt.Sprintf(": posts: %d, ", syscall.ENOMEM)),
				"the queue was full")
		}
	}
}

// Constants of testdata/dynamic.c.
const (
	dynamicDepth, dynamicSGEs, dynamicInline, dynamicTargets, dynamicRegion = 32, 4, 64, 3, 512
	dynamicSteps, dynamicLive                                               = 40, 100
)

// dynamicCaller makes the same posts as testdata/dynamic.c.
type dynamicCaller struct {
	caller
	live   bool
	device *rdma.Device
	cq     *rdma.CQ
	srq    *rdma.SRQ
	mr     *rdma.MR
	dci    *rdma.QP
	dcts   []*rdma.QP
	ahs    []*rdma.AH
	keys   []uint64
}

func (c *dynamicCaller) wide() (v uint64) {
	for range 4 {
		v = v<<16 | uint64(c.below(1<<16))
	}
	return v
}

func insideDynamic(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 32)
	require.NoError(t, err)
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	c := &dynamicCaller{caller: caller{t: t, out: out, state: uint32(seed)}, live: os.Getenv(envLive) == "live"}
	c.open()
	if c.live {
		for i := range dynamicLive {
			n := int(1 + c.below(3))
			c.posts(i, n)
			c.drain(n)
		}
		return
	}
	room, posted := os.Getenv(envLive) == "room", 0
	for i := range dynamicSteps {
		n := int(1 + c.below(3))
		if posted += n; room && posted >= dynamicDepth {
			break
		}
		c.posts(i, n)
	}
}

// open creates the objects in the order of the C program. They are closed in reverse order.
func (c *dynamicCaller) open() {
	c.memory()
	const access = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC
	device := openDevice(c.t)
	pd, err := device.AllocPD()
	keep(c.t, pd, err)
	c.mr, err = pd.RegAddress(callsAt, callsSize, callsAt, ibv.ACCESS_LOCAL_WRITE|access)
	keep(c.t, c.mr, err)
	c.cq, err = device.CreateCQ(4*dynamicDepth, nil, 0)
	keep(c.t, c.cq, err)
	c.srq, err = pd.CreateSRQ(ibv.SRQAttr{MaxWR: dynamicDepth, MaxSGE: 1}, rdma.QueueOptions{})
	keep(c.t, c.srq, err)
	gid, err := device.GID(1, 1)
	c.check(err)
	attr := ibv.QPAttr{PortNum: 1, QPAccessFlags: access, PathMTU: ibv.MTU_1024, MinRNRTimer: 12, Timeout: 14, RetryCnt: 7,
		RNRRetry: 7, MaxRdAtomic: 4, AHAttr: ibv.AHAttr{IsGlobal: 1, PortNum: 1,
			GRH: ibv.GlobalRoute{DGID: gid.GID, SGIDIndex: 1, HopLimit: 4, FlowLabel: 5}}}
	to := func(qp *rdma.QP, state ibv.QPState, mask ibv.QPAttrMask) {
		attr.QPState = state
		c.check(qp.Modify(&attr, ibv.QP_STATE|mask))
	}
	dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC}
	init := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: c.cq.Ptr(), RecvCQ: c.cq.Ptr(), PD: pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	for i := range dynamicTargets {
		key := c.wide()
		dv.DCInitAttr.DCType, *dv.DCInitAttr.DCTAccessKey() = mlx5dv.DCTYPE_DCT, key
		init.SRQ = c.srq.Ptr()
		dct, err := mlx5.CreateQP(device, init, dv, rdma.QueueOptions{})
		c.check(err)
		fmt.Fprintf(c.out, "target %d: number %d\n", i, dct.Num())
		to(dct, ibv.QPS_INIT, ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS)
		to(dct, ibv.QPS_RTR, ibv.QP_MIN_RNR_TIMER|ibv.QP_AV|ibv.QP_PATH_MTU)
		fmt.Fprintf(c.out, "target %d: number %d\n", i, dct.Num())
		attr.AHAttr.GRH.FlowLabel++
		ah, err := pd.CreateAH(&attr.AHAttr)
		c.check(err)
		c.dcts, c.ahs, c.keys = append(c.dcts, dct), append(c.ahs, ah), append(c.keys, key)
	}
	c.t.Cleanup(func() {
		for i, dct := range c.dcts {
			assert.NoError(c.t, dct.Close())
			assert.NoError(c.t, c.ahs[i].Close())
		}
	})
	dv.DCInitAttr.DCType, *dv.DCInitAttr.DCTAccessKey() = mlx5dv.DCTYPE_DCI, 0
	init.SRQ, init.CompMask = 0, init.CompMask|ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
	init.Cap = ibv.QPCap{MaxSendWR: dynamicDepth - 1, MaxSendSGE: dynamicSGEs, MaxInlineData: dynamicInline}
	init.SendOpsFlags = ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_SEND_WITH_INV |
		ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ |
		ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP | ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD
	c.dci, err = mlx5.CreateQP(device, init, dv, rdma.QueueOptions{Unchecked: true}) // libmlx5 checks; rdma asks for one more request
	keep(c.t, c.dci, err)
	to(c.dci, ibv.QPS_INIT, ibv.QP_PKEY_INDEX|ibv.QP_PORT)
	to(c.dci, ibv.QPS_RTR, ibv.QP_PATH_MTU)
	to(c.dci, ibv.QPS_RTS, ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC|ibv.QP_SQ_PSN)
}

func (c *dynamicCaller) receive(id int) {
	b, err := rdma.NewRecvBatch(1, 1)
	keep(c.t, b, err)
	b.Recv(uint64(id)).SGE(callsAt+callsSize/2, 1024, c.mr.LKey())
	_, err = c.srq.PostRecv(b)
	c.check(err)
}

func (c *dynamicCaller) posts(step, n int) {
	p, err := c.dci.NewWRProgram()
	c.check(err)
	for i := range n {
		flags := ibv.SendFlags(0)
		if c.live || c.below(8) != 0 {
			flags |= ibv.SEND_SIGNALED
		}
		if c.below(4) == 0 {
			flags |= ibv.SEND_FENCE
		}
		if c.below(4) == 0 {
			flags |= ibv.SEND_SOLICITED
		}
		op, rkey := c.below(8), c.mr.RKey()
		if !c.live {
			rkey = uint32(c.wide())
		} else if op == 2 {
			op = 0
		}
		remote := uint64(0)
		if c.live {
			remote = callsAt + callsSize/4 + 8*uint64(c.below(64))
		} else {
			remote = c.wide()
		}
		imm := ibv.ToBE32(c.below(1 << 16))
		compare, swap := c.wide(), c.wide()
		if c.live && (op <= 1 || op == 4) {
			c.receive(1000 + step)
		}
		id := uint64(10*step + i)
		var r rdma.WRRequest
		switch op {
		case 0:
			r = p.Send(id)
		case 1:
			r = p.SendImm(id, imm)
		case 2:
			r = p.SendInv(id, rkey)
		case 3:
			r = p.Write(id, remote, rkey)
		case 4:
			r = p.WriteImm(id, remote, rkey, imm)
		case 5:
			r = p.Read(id, remote, rkey)
		case 6:
			r = p.CompareSwap(id, remote, rkey, compare, swap)
		default:
			r = p.FetchAdd(id, remote, rkey, compare)
		}
		r.Flags(flags)
		entries, inline := uint32(1), false
		if op < 6 {
			entries = c.below(dynamicSGEs + 1)
			inline = op < 5 && entries > 0 && c.below(3) == 0
		}
		for range entries {
			length := uint32(8)
			switch {
			case inline:
				length = 1 + c.below(dynamicInline/dynamicSGEs)
			case op < 6:
				length = 1 + c.below(200)
			}
			at := callsAt + 8*uint64(c.below(dynamicRegion))
			if inline {
				r.Inline(unsafe.Slice(ibv.Ptr[byte](at).Deref(), length))
			} else {
				r.SGE(at, length, c.mr.LKey())
			}
		}
		to := c.below(dynamicTargets)
		number, key := c.dcts[to].Num(), c.keys[to]
		if !c.live {
			number = uint32(c.wide()) & 0xffffff
			key = c.wide()
		}
		mlx5.DC(r, c.ahs[to].Ptr(), number, key)
	}
	var code syscall.Errno
	if err := c.dci.PostProgram(p); err != nil {
		require.ErrorAs(c.t, err, &code)
	}
	fmt.Fprintf(c.out, "%d: posts: %d, then %d\n", step, int(code), c.state)
}

// drain prints completions until n sends have completed.
func (c *dynamicCaller) drain(n int) {
	wcs := make([]ibv.WC, 1)
	for n > 0 {
		got, err := c.cq.Poll(wcs)
		c.check(err)
		if got == 0 {
			continue
		}
		w := wcs[0]
		if w.QPNum == c.dci.Num() {
			n--
		}
		if w.Status != ibv.WC_SUCCESS {
			w.Opcode = 0
		}
		fmt.Fprintf(c.out, "%d %d %d %d %x\n", w.WRID, uint32(w.Status), uint32(w.Opcode), w.QPNum, uint32(w.WCFlags))
	}
}

// insideDynamicPaths is like insideReleases for each data path of dynamic connections.
func insideDynamicPaths(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	for _, path := range []string{pathC, pathGo, pathNative, pathNativeGo} {
		insideReleases(t, path)
	}
	return false
}

// TestDynamicMisuse: errors of posts. A wrong access key breaks the initiator, and nothing else.
func TestDynamicMisuse(t *testing.T) {
	if !insideDynamicPaths(t) {
		return
	}
	device := openDevice(t)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(64, channel, 0)
	keep(t, cq, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	keep(t, srq, err)
	const access = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ
	mr, err := pd.RegMR(make([]byte, 4096), ibv.ACCESS_LOCAL_WRITE|access)
	keep(t, mr, err)
	gid, err := device.GID(1, 1)
	require.NoError(t, err)
	attr := &ibv.QPAttr{PortNum: 1, QPAccessFlags: access, PathMTU: ibv.MTU_1024, MinRNRTimer: 12, Timeout: 1, RetryCnt: 1,
		MaxRdAtomic: 1, AHAttr: ibv.AHAttr{IsGlobal: 1, PortNum: 1, GRH: ibv.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}}}
	to := func(qp *rdma.QP, state ibv.QPState, mask ibv.QPAttrMask) {
		t.Helper()
		attr.QPState = state
		require.NoError(t, qp.Modify(attr, ibv.QP_STATE|mask))
	}
	create := func(kind mlx5dv.DCType, key uint64, srq *rdma.SRQ) (*rdma.QP, error) {
		dv := &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC, DCInitAttr: mlx5dv.DCInitAttr{DCType: kind}}
		*dv.DCInitAttr.DCTAccessKey() = key
		init := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
			CompMask: ibv.QP_INIT_ATTR_PD}
		if srq != nil {
			init.SRQ = srq.Ptr()
		}
		if kind == mlx5dv.DCTYPE_DCI {
			init.Cap = ibv.QPCap{MaxSendWR: 8, MaxSendSGE: 1}
			init.CompMask |= ibv.QP_INIT_ATTR_SEND_OPS_FLAGS
			init.SendOpsFlags = ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_RDMA_WRITE
		}
		return mlx5.CreateQP(device, init, dv, rdma.QueueOptions{})
	}
	_, err = create(mlx5dv.DCTYPE_DCT, 1, nil)
	assert.Error(t, err, "a target without a shared receive queue")
	const key = 0x8877665544332211
	dct, err := create(mlx5dv.DCTYPE_DCT, key, srq)
	keep(t, dct, err)
	to(dct, ibv.QPS_INIT, ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS)
	to(dct, ibv.QPS_RTR, ibv.QP_MIN_RNR_TIMER|ibv.QP_AV|ibv.QP_PATH_MTU)
	ah, err := pd.CreateAH(&attr.AHAttr)
	keep(t, ah, err)
	initiator := func() *rdma.QP {
		dci, err := create(mlx5dv.DCTYPE_DCI, 0, nil)
		keep(t, dci, err)
		to(dci, ibv.QPS_INIT, ibv.QP_PKEY_INDEX|ibv.QP_PORT)
		to(dci, ibv.QPS_RTR, ibv.QP_PATH_MTU)
		to(dci, ibv.QPS_RTS, ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC|ibv.QP_SQ_PSN)
		return dci
	}
	dci := initiator()
	p, err := dci.NewWRProgram()
	require.NoError(t, err)
	var posted *rdma.PostError
	p.Write(1, mr.Address(), mr.RKey()).Add(mr.SGE(0, 8))
	require.ErrorAs(t, dci.PostProgram(p), &posted)
	assert.Contains(t, posted.Error(), "it has no address")
	b, err := rdma.NewSendBatch(1, 1, 0)
	keep(t, b, err)
	b.Write(1, mr.Address(), mr.RKey()).Add(mr.SGE(0, 8))
	_, err = dct.PostSend(b)
	assert.Error(t, err, "a post on a target")
	_, err = dct.NewWRProgram()
	assert.Error(t, err, "a program for a target")
	_, err = dci.PostSend(b)
	assert.ErrorContains(t, err, "ibv_post_send cannot set the target of a dynamic connection")

	good := func(dci *rdma.QP) {
		t.Helper()
		p, err := dci.NewWRProgram()
		require.NoError(t, err)
		mlx5.DC(p.Write(7, mr.Address()+100, mr.RKey()).Signaled().Add(mr.SGE(0, 8)), ah.Ptr(), dct.Num(), key)
		require.NoError(t, dci.PostProgram(p))
		wc := next(t, cq)
		assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
		assert.EqualValues(t, 7, wc.WRID)
	}
	good(dci)
	for name, c := range map[string]struct {
		number uint32
		key    uint64
		status ibv.WCStatus
	}{
		"access key": {dct.Num(), key ^ 1<<63, ibv.WC_REM_ACCESS_ERR},
		"number":     {dct.Num() ^ 0x8000, key, ibv.WC_RETRY_EXC_ERR},
		"initiator":  {dci.Num(), key, ibv.WC_RETRY_EXC_ERR},
	} {
		broken := initiator()
		p, err := broken.NewWRProgram()
		require.NoError(t, err)
		for i := range uint64(2) {
			mlx5.DC(p.Write(i, mr.Address()+200, mr.RKey()).Signaled().Add(mr.SGE(0, 8)), ah.Ptr(), c.number, c.key)
		}
		require.NoError(t, broken.PostProgram(p))
		assert.Equal(t, c.status, next(t, cq).Status, name)
		assert.Equal(t, ibv.WC_WR_FLUSH_ERR, next(t, cq).Status, name)
		good(dci)
	}
}
