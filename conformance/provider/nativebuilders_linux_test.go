// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// builderKinds are the types of queue pairs with builders, and their operations in the bits of ibv_wr_opcode.
var builderKinds = []struct {
	kind ibv.QPType
	ops  []ibv.WROpcode
}{
	{ibv.QPT_RC, connectedOps},
	{ibv.QPT_UC, []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE,
		ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_LOCAL_INV, ibv.WR_BIND_MW}},
	{ibv.QPT_UD, []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM}},
	{ibv.QPT_XRC_SEND, connectedOps},
	{ibv.QPT_DRIVER, connectedOps},
	{ibv.QPT_RAW_PACKET, []ibv.WROpcode{ibv.WR_SEND, ibv.WR_TSO}},
}

var connectedOps = []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE,
	ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD,
	ibv.WR_LOCAL_INV, ibv.WR_BIND_MW}

// TestNativeBuilders checks that package native and libmlx5 send the same commands for extended queue pairs of each
// type, write the same bytes for random lists of ibv_wr_*, and read the same completions. The requests are invalid, so
// the working device completes them with errors.
func TestNativeBuilders(t *testing.T) {
	if os.Getenv(envInside) != "" {
		insideBuilders(t)
		return
	}
	seeds := 1
	if os.Getenv(envAll) != "" {
		seeds = 5
	}
	for _, e := range releases(t) {
		if e.libraries.Release != "44.0" { // its mlx5dv_create_qp has another structure
			sameBuilders(t, e, seeds)
		}
	}
}

func sameBuilders(t *testing.T, e *Emulated, seeds int) {
	t.Helper()
	program, record := testProgram(t, e, "."), filepath.Join(t.TempDir(), "record")
	results := filepath.Join(t.TempDir(), "results")
	for range seeds {
		for i, k := range builderKinds {
			seed := strconv.FormatUint(uint64(rand.Uint32()), 10)
			for _, live := range []string{"", "live", "no headers"} {
				if live == "no headers" && k.kind != ibv.QPT_RAW_PACKET {
					continue
				}
				var texts [2]string
				for j, path := range []string{pathC, pathNative} {
					cmd := e.Command(t.Context(), program, "-test.run=^TestNativeBuilders$")
					cmd.Env = append(cmd.Env, envInside+"="+path, envSeed+"="+seed, envLive+"="+live, envResults+"="+results,
						"GOVERBS_RECORD="+record, envKind+"="+strconv.Itoa(i))
					if live == "" {
						cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_STILL=1")
					}
					if live == "no headers" {
						cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_NO_INLINE=1")
					}
					out, err := cmd.CombinedOutput()
					require.NoError(t, err, "%s, %s: %s", path, e.libraries.Release, out)
					texts[j] = requests(MLX5, read(t, record), make([]int, len(differences))) + read(t, results)
				}
				require.Equal(t, texts[0], texts[1], "%v, %s, %s, seed %s", builderKinds[i].kind, e.libraries.Release,
					live, seed)
				assert.Regexp(t, regexp.MustCompile(`sends, \d+ bytes: [1-9a-f]`), texts[0])
				assert.Greater(t, strings.Count(texts[0], "posts: 0\n"), 10)
			}
		}
	}
}

const envKind = "GOVERBS_BUILDERS_KIND"

// builders posts random lists to a queue pair.
type builders struct {
	*user
	r    *rand.Rand
	kind ibv.QPType
	ops  []ibv.WROpcode
	live bool
	out  *os.File
	mr   *ibv.MR
	mw   *ibv.MW
	ah   *ibv.AH
	x    *ibv.QPEx
	dv   *mlx5dv.QPEx
	wrs  *[3]ibv.SendWR
	of   *[3][buildersSGEs]ibv.SGE // of wrs
	sges *[buildersSGEs]ibv.SGE
	bufs *[buildersSGEs]ibv.DataBuf
	bind *ibv.MWBindInfo
}

const buildersDepth, buildersSGEs, buildersInline, buildersHeader = 48, 3, 100, 64

func insideBuilders(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 32)
	require.NoError(t, err)
	i, err := strconv.Atoi(os.Getenv(envKind))
	require.NoError(t, err)
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	b := &builders{user: newUser(t, envBackend(t)), r: rand.New(rand.NewPCG(seed, 1)), kind: builderKinds[i].kind,
		ops: builderKinds[i].ops, live: os.Getenv(envLive) != "", out: out}
	b.create()
	if b.live {
		b.ops = slices.DeleteFunc(slices.Clone(b.ops), func(op ibv.WROpcode) bool { return op == ibv.WR_TSO })
		for i := range 100 {
			n := 1 + b.r.IntN(3)
			b.posts(i, n)
			b.drain(n)
		}
		return
	}
	for range 3 { // the first request of each round starts at the first block
		for i, left := 0, buildersDepth; ; i++ {
			n := 1 + b.r.IntN(3)
			if left -= n; left <= 1 {
				break
			}
			b.posts(i, n)
		}
		// A change of a key fences the next request. libmlx5 still does after RESET.
		all := b.ops
		b.ops = all[:1]
		b.posts(100, 1)
		b.ops = all
		b.to(ibv.QPS_RESET)
		b.connect()
	}
}

// create creates the queue pair in RTS.
func (b *builders) create() {
	t := b.t
	c := &caller{t: t}
	at := c.memory()
	b.sges = (*[buildersSGEs]ibv.SGE)(unsafe.Add(at, callsSize))
	b.bufs = (*[buildersSGEs]ibv.DataBuf)(unsafe.Add(at, callsSize+1024))
	b.wrs = (*[3]ibv.SendWR)(unsafe.Add(at, callsSize+3072))
	b.of = (*[3][buildersSGEs]ibv.SGE)(unsafe.Add(at, callsSize+4096))
	b.bind = (*ibv.MWBindInfo)(unsafe.Add(at, callsSize+2048))
	var err error
	b.mr, err = verbs.RegMR(b.pd, callsAt, callsSize, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_MW_BIND)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DeregMR(b.mr)) })
	b.mw, err = verbs.AllocMW(b.pd, ibv.MW_TYPE_2)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DeallocMW(b.mw)) })
	b.ah, err = verbs.CreateAH(b.pd, b.route())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DestroyAH(b.ah)) })
	a := &ibv.QPInitAttrEx{QPType: b.kind, SendCQ: ibv.PtrTo(b.cq), RecvCQ: ibv.PtrTo(b.cq), PD: ibv.PtrTo(b.pd),
		Cap:      ibv.QPCap{MaxSendWR: buildersDepth, MaxSendSGE: buildersSGEs, MaxInlineData: buildersInline},
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS}
	for _, op := range b.ops {
		a.SendOpsFlags |= ibv.WRBuilder(op).SendOps
	}
	if b.kind == ibv.QPT_RAW_PACKET {
		a.MaxTSOHeader = buildersHeader
		a.CompMask |= ibv.QP_INIT_ATTR_MAX_TSO_HEADER
	}
	var qp *ibv.QP
	if b.kind == ibv.QPT_DRIVER {
		qp, err = libmlx5.CreateQP(b.context, a, &mlx5dv.QPInitAttr{CompMask: mlx5dv.QP_INIT_ATTR_MASK_DC,
			DCInitAttr: mlx5dv.DCInitAttr{DCType: mlx5dv.DCTYPE_DCI}})
	} else {
		qp, err = verbs.CreateQPEx(b.context, a)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, verbs.DestroyQP(qp)) })
	fmt.Fprintf(b.out, "%+v\n", a.Cap)
	b.x, err = verbs.QPToQPEx(qp)
	require.NoError(t, err)
	b.dv, err = libmlx5.QPExFromIBVQPEx(b.x)
	require.NoError(t, err)
	b.complete(0, "an empty list")
	if b.kind != ibv.QPT_RAW_PACKET { // libmlx5 crashes if the packet needs a checksum
		b.post(0, "before RTS", 1)
	}
	b.connect()
}

func (b *builders) route() *ibv.AHAttr {
	a := &ibv.AHAttr{IsGlobal: 1, PortNum: 1, GRH: ibv.GlobalRoute{SGIDIndex: 1, HopLimit: 4, FlowLabel: 5}}
	require.NoError(b.t, verbs.QueryGID(b.context, 1, 1, &a.GRH.DGID))
	return a
}

func (b *builders) to(state ibv.QPState) {
	a := &ibv.QPAttr{QPState: state, PortNum: 1, PathMTU: ibv.MTU_1024, DestQPNum: b.x.QPBase.QPNum, Timeout: 1,
		MaxRdAtomic: 1, MaxDestRdAtomic: 1, AHAttr: *b.route()}
	require.NoError(b.t, verbs.ModifyQP(&b.x.QPBase, a, ibv.QP_STATE|b.masks()[state]), state)
}

func (b *builders) connect() {
	for _, state := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
		b.to(state)
	}
}

// masks returns the attributes of changes to a state.
func (b *builders) masks() map[ibv.QPState]ibv.QPAttrMask {
	const init, reliable = ibv.QP_PKEY_INDEX | ibv.QP_PORT, ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY |
		ibv.QP_MAX_QP_RD_ATOMIC | ibv.QP_SQ_PSN
	rtr := ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN
	switch b.kind {
	case ibv.QPT_UD:
		return map[ibv.QPState]ibv.QPAttrMask{ibv.QPS_INIT: init | ibv.QP_QKEY, ibv.QPS_RTS: ibv.QP_SQ_PSN}
	case ibv.QPT_DRIVER:
		return map[ibv.QPState]ibv.QPAttrMask{ibv.QPS_INIT: init, ibv.QPS_RTR: ibv.QP_PATH_MTU, ibv.QPS_RTS: reliable}
	case ibv.QPT_RAW_PACKET:
		return map[ibv.QPState]ibv.QPAttrMask{ibv.QPS_INIT: ibv.QP_PORT}
	case ibv.QPT_UC:
		return map[ibv.QPState]ibv.QPAttrMask{ibv.QPS_INIT: init | ibv.QP_ACCESS_FLAGS, ibv.QPS_RTR: rtr,
			ibv.QPS_RTS: ibv.QP_SQ_PSN}
	}
	return map[ibv.QPState]ibv.QPAttrMask{ibv.QPS_INIT: init | ibv.QP_ACCESS_FLAGS,
		ibv.QPS_RTR: rtr | ibv.QP_MAX_DEST_RD_ATOMIC | ibv.QP_MIN_RNR_TIMER, ibv.QPS_RTS: reliable}
}

// posts posts a list by ibv_wr_*, or some packets by ibv_post_send.
func (b *builders) posts(step, n int) {
	if b.kind == ibv.QPT_RAW_PACKET && b.r.IntN(2) == 0 {
		b.list(step, n)
	} else {
		b.post(step, "posts", n)
	}
}

// list posts a list of n packets. libmlx5 skips data of a segmented one after another one, and writes data past the end
// of the ring if the header of a segmented one ends there, so a live device, whose ring wraps around, gets none.
func (b *builders) list(step, n int) {
	if segmented := !b.live && n == 1 && b.r.IntN(2) == 0; segmented {
		b.wrs[0] = ibv.SendWR{Opcode: ibv.WR_TSO}
		*b.wrs[0].TSO() = b.segments()
	} else {
		for i := range n {
			b.wrs[i] = ibv.SendWR{Opcode: ibv.WR_SEND}
		}
	}
	for i := range n {
		w := &b.wrs[i]
		if w.WRID = uint64(10*step + i); i > 0 {
			b.wrs[i-1].Next = ibv.PtrTo(w)
		}
		w.SendFlags = b.flags()
		inline, count := b.buffers(w.Opcode)
		if inline {
			w.SendFlags |= ibv.SEND_INLINE
		}
		b.of[i] = *b.sges
		w.SGList, w.NumSGE = ibv.PtrTo(&b.of[i][0]), int32(count)
	}
	var bad ibv.Ptr[ibv.SendWR]
	require.NoError(b.t, verbs.PostSend(&b.x.QPBase, &b.wrs[0], &bad))
	fmt.Fprintf(b.out, "%d: list\n", step)
}

// segments returns a header and the size of the data after it.
func (b *builders) segments() ibv.SendTSO {
	return ibv.SendTSO{Hdr: uintptr(callsAt + b.r.IntN(1000)), HdrSz: uint16(14 + b.r.IntN(buildersHeader-13)),
		MSS: uint16(1 + b.r.IntN(2000))}
}

func (b *builders) flags() ibv.SendFlags {
	f := []ibv.SendFlags{0, ibv.SEND_SIGNALED, ibv.SEND_FENCE, ibv.SEND_SOLICITED,
		ibv.SEND_SIGNALED | ibv.SEND_FENCE | ibv.SEND_SOLICITED}[b.r.IntN(5)]
	if b.live {
		f |= ibv.SEND_SIGNALED
	}
	if b.kind == ibv.QPT_RAW_PACKET && b.r.IntN(2) == 0 {
		f |= ibv.SEND_IP_CSUM
	}
	return f
}

// post posts a list of n requests.
func (b *builders) post(step int, what string, n int) {
	require.NoError(b.t, verbs.WRStart(b.x))
	for i := range n {
		b.request(uint64(10*step + i))
	}
	if b.r.IntN(8) == 0 {
		require.NoError(b.t, verbs.WRAbort(b.x))
		fmt.Fprintf(b.out, "%d: aborted\n", step)
		b.post(step, what, n)
		return
	}
	b.end(step, what)
}

func (b *builders) complete(step int, what string) {
	require.NoError(b.t, verbs.WRStart(b.x))
	b.end(step, what)
}

func (b *builders) end(step int, what string) {
	var errno syscall.Errno
	if err := verbs.WRComplete(b.x); err != nil {
		require.True(b.t, errors.As(err, &errno), "%v", err)
	}
	fmt.Fprintf(b.out, "%d: %s: %d\n", step, what, int(errno))
}

// request adds a random request.
func (b *builders) request(id uint64) {
	check := func(err error) { b.t.Helper(); require.NoError(b.t, err) }
	r, x := b.r, b.x
	x.WRID, x.WRFlags = id, b.flags()
	op := b.ops[r.IntN(len(b.ops))]
	rkey, remote, imm := r.Uint32(), r.Uint64(), ibv.BE32(r.Uint32())
	address := true
	switch op {
	case ibv.WR_SEND:
		check(verbs.WRSend(x))
	case ibv.WR_SEND_WITH_IMM:
		check(verbs.WRSendImm(x, imm))
	case ibv.WR_SEND_WITH_INV:
		check(verbs.WRSendInv(x, rkey))
	case ibv.WR_RDMA_WRITE:
		check(verbs.WRRDMAWrite(x, rkey, remote))
	case ibv.WR_RDMA_WRITE_WITH_IMM:
		check(verbs.WRRDMAWriteImm(x, rkey, remote, imm))
	case ibv.WR_RDMA_READ:
		check(verbs.WRRDMARead(x, rkey, remote))
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		check(verbs.WRAtomicCmpSwp(x, rkey, remote, r.Uint64(), r.Uint64()))
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		check(verbs.WRAtomicFetchAdd(x, rkey, remote, r.Uint64()))
	case ibv.WR_TSO:
		s := b.segments()
		check(verbs.WRSendTSO(x, s.Hdr, s.HdrSz, s.MSS))
	case ibv.WR_LOCAL_INV:
		check(verbs.WRLocalInv(x, rkey))
		return
	case ibv.WR_BIND_MW:
		*b.bind = ibv.MWBindInfo{MR: ibv.PtrTo(b.mr), Addr: callsAt + uint64(r.IntN(callsSize)),
			Length: uint64(r.IntN(2) * r.IntN(1000)), MWAccessFlags: ibv.AccessFlags(r.Uint32N(1<<6)) &^ 1}
		check(verbs.WRBindMW(x, b.mw, rkey, b.bind))
		return
	}
	if address = r.IntN(2) == 0; address {
		b.address()
	}
	b.data(op)
	if !address {
		b.address()
	}
}

// address sets the address of the last request, if it has one.
func (b *builders) address() {
	number, key := b.r.Uint32()&0xffffff, b.r.Uint64()
	switch b.kind {
	case ibv.QPT_UD:
		require.NoError(b.t, verbs.WRSetUDAddr(b.x, b.ah, number, uint32(key)))
	case ibv.QPT_XRC_SEND:
		require.NoError(b.t, verbs.WRSetXRCSRQN(b.x, number))
	case ibv.QPT_DRIVER:
		if number&1 == 0 {
			require.NoError(b.t, libmlx5.WRSetDCAddr(b.dv, b.ah, number, key))
		} else {
			require.NoError(b.t, libmlx5.WRSetDCAddrStream(b.dv, b.ah, number, key, uint16(key)))
		}
	}
}

// buffers chooses n buffers for a request. A packet has at least the 18 bytes of headers that it contains itself, and
// more in one buffer, because libmlx5 sends the headers twice otherwise.
func (b *builders) buffers(op ibv.WROpcode) (inline bool, n int) {
	r := b.r
	inline = op != ibv.WR_RDMA_READ && op != ibv.WR_ATOMIC_CMP_AND_SWP && op != ibv.WR_ATOMIC_FETCH_AND_ADD &&
		r.IntN(2) == 0
	n = r.IntN(buildersSGEs + 1)
	if b.kind == ibv.QPT_RAW_PACKET {
		n = max(n, 1)
	}
	for i := range n {
		length := uint32(r.IntN(3) * r.IntN(1000))
		if inline {
			length = uint32(r.IntN(3) * r.IntN(buildersInline/buildersSGEs/2))
		}
		if b.kind == ibv.QPT_RAW_PACKET && (i == 0 || i == 1 && b.sges[0].Length < 18) {
			length += 19
			if i == 0 && n > 1 {
				length -= uint32(r.IntN(19))
			}
		}
		b.sges[i] = ibv.SGE{Addr: callsAt + uint64(r.IntN(callsSize/2)), Length: length, LKey: r.Uint32()}
		b.bufs[i] = ibv.DataBuf{Addr: uintptr(b.sges[i].Addr), Length: uint64(length)}
	}
	return inline, n
}

// data sets the data of the last request.
func (b *builders) data(op ibv.WROpcode) {
	check := func(err error) { b.t.Helper(); require.NoError(b.t, err) }
	x := b.x
	inline, n := b.buffers(op)
	switch {
	case inline && n == 1:
		check(verbs.WRSetInlineData(x, b.bufs[0].Addr, b.bufs[0].Length))
	case inline:
		check(verbs.WRSetInlineDataList(x, uint64(n), &b.bufs[0]))
	case n == 1 && op != ibv.WR_TSO: // libmlx5 may write an entry after the end of the ring
		check(verbs.WRSetSGE(x, b.sges[0].LKey, b.sges[0].Addr, b.sges[0].Length))
	default:
		check(verbs.WRSetSGEList(x, uint64(n), &b.sges[0]))
	}
}

// drain prints n completions.
func (b *builders) drain(n int) {
	var wc ibv.WC
	for n > 0 {
		got, err := verbs.PollCQ(b.cq, 1, &wc)
		require.NoError(b.t, err)
		if got == 1 {
			n--
			fmt.Fprintf(b.out, "%d %v %d\n", wc.WRID, wc.Status, wc.QPNum)
		}
	}
}

// TestNativeVendorAttributes compares which attributes of mlx5dv_create_qp are valid. Package native has none of the
// flags, operations and streams of mlx5.
func TestNativeVendorAttributes(t *testing.T) {
	if os.Getenv(envInside) == "" {
		for _, e := range releases(t) {
			if e.libraries.Release != "44.0" {
				again(t, e, pathNative)
			}
		}
		return
	}
	const lacking = mlx5dv.QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | mlx5dv.QP_INIT_ATTR_MASK_DCI_STREAMS
	var answers [2][]string
	for i, u := range [2]*user{newUser(t, nil), newUser(t, backend(t))} {
		srq, err := verbs.CreateSRQ(u.pd, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 3, MaxSGE: 1}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, verbs.DestroySRQ(srq)) })
		for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UD, ibv.QPT_DRIVER} {
			for mask := range mlx5dv.QPInitAttrMask(32) {
				for _, dc := range []mlx5dv.DCType{mlx5dv.DCTYPE_DCI, mlx5dv.DCTYPE_DCT, 0, 9} {
					for _, more := range []ibv.QPInitAttrMask{0, ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, ibv.QP_INIT_ATTR_RX_HASH << 9} {
						for _, shared := range []ibv.Ptr[ibv.SRQ]{0, ibv.PtrTo(srq)} {
							a := &ibv.QPInitAttrEx{QPType: kind, SendCQ: ibv.PtrTo(u.cq), RecvCQ: ibv.PtrTo(u.cq), SRQ: shared,
								PD: ibv.PtrTo(u.pd), Cap: ibv.QPCap{MaxSendWR: 1}, CompMask: ibv.QP_INIT_ATTR_PD | more,
								SendOpsFlags: ibv.QP_EX_WITH_SEND}
							qp, err := libmlx5.CreateQP(u.context, a, &mlx5dv.QPInitAttr{CompMask: mask,
								DCInitAttr: mlx5dv.DCInitAttr{DCType: dc}})
							answers[i] = append(answers[i], fmt.Sprintln(kind, mask, dc, more, shared != 0, err == nil))
							if err == nil {
								require.NoError(t, verbs.DestroyQP(qp))
							} else if i == 1 && mask&lacking != 0 && mask < 16 {
								assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
								answers[1][len(answers[1])-1] = answers[0][len(answers[1])-1]
							}
						}
					}
				}
			}
		}
	}
	assert.Equal(t, answers[0], answers[1])
	assert.Contains(t, strings.Join(answers[0], ""), "IBV_QPT_DRIVER MLX5DV_QP_INIT_ATTR_MASK_DC MLX5DV_DCTYPE_DCT 0 true true")
}
