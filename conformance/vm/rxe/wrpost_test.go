// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// builders lists the opcodes that ibv_wr_* can build, with the create flag that each requires.
var builders = []struct {
	opcode ibv.WROpcode
	with   ibv.QPCreateSendOpsFlags
}{
	{ibv.WR_RDMA_WRITE, ibv.QP_EX_WITH_RDMA_WRITE},
	{ibv.WR_RDMA_WRITE_WITH_IMM, ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM},
	{ibv.WR_SEND, ibv.QP_EX_WITH_SEND},
	{ibv.WR_SEND_WITH_IMM, ibv.QP_EX_WITH_SEND_WITH_IMM},
	{ibv.WR_RDMA_READ, ibv.QP_EX_WITH_RDMA_READ},
	{ibv.WR_ATOMIC_CMP_AND_SWP, ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP},
	{ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD},
	{ibv.WR_LOCAL_INV, ibv.QP_EX_WITH_LOCAL_INV},
	{ibv.WR_BIND_MW, ibv.QP_EX_WITH_BIND_MW},
	{ibv.WR_SEND_WITH_INV, ibv.QP_EX_WITH_SEND_WITH_INV},
	{ibv.WR_TSO, ibv.QP_EX_WITH_TSO},
	{ibv.WR_FLUSH, ibv.QP_EX_WITH_FLUSH},
	{ibv.WR_ATOMIC_WRITE, ibv.QP_EX_WITH_ATOMIC_WRITE},
}

// Ways to set the data of a request: ibv_wr_set_sge, ibv_wr_set_inline_data, or none.
const (
	bySGE    = "sge"
	byInline = "inline"
	byNone   = "none"
)

// setters returns the ways to set data for a flag. The INLINE flag of ibv_post_send corresponds to inline data.
func setters(o ibv.WROpcode, flag ibv.SendFlags) []string {
	switch {
	case !takesData(o) && flag&ibv.SEND_INLINE != 0:
		return nil
	case !takesData(o):
		return []string{byNone}
	case flag&ibv.SEND_INLINE != 0:
		return []string{byInline}
	case flag == ibv.SEND_SIGNALED:
		return []string{bySGE, byInline}
	}
	return []string{bySGE}
}

// TestWRPost is TestPostSend with ibv_wr_*. It measures whether a queue pair with the builder can be created, and the
// result of posting.
func TestWRPost(t *testing.T) {
	r := testbed.Open(t)
	b := newBuffers(r)
	table := results.Table{
		Columns: []string{"qp_type", "opcode", "flags", "setter", "create", "post", "wc_status", "wc_opcode",
			"qp_state", "recv_status", "recv_opcode", "data"}, Keys: 4,
	}
	for _, kind := range ofDevice(creatable) {
		for _, builder := range builders {
			for _, flag := range flags {
				for _, setter := range setters(builder.opcode, flag) {
					key := []string{trim(kind.String()), opcodeName(builder.opcode), flagNames(flag), setter}
					t.Run(strings.Join(key, "/"), func(t *testing.T) {
						table.Rows = append(table.Rows,
							append(key, wrPost(t, r.For(t), b, kind, builder.opcode, builder.with, flag, setter)...))
					})
				}
			}
		}
	}
	check(t, "wr_post", table)
}

func takesData(o ibv.WROpcode) bool {
	switch o {
	case ibv.WR_LOCAL_INV, ibv.WR_BIND_MW, ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE:
		return false
	}
	return true
}

// wrPost returns the columns from create on.
func wrPost(t *testing.T, r *testbed.Testbed, b buffers, kind ibv.QPType, opcode ibv.WROpcode, with ibv.QPCreateSendOpsFlags,
	flag ibv.SendFlags, setter string) []string {
	t.Helper()
	cq := r.CQ(16)
	init := ibv.QPInitAttrEx{
		QPType: kind, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), Cap: testbed.Caps, PD: ibv.PtrTo(r.PD),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: with,
	}
	first, err := verbs.CreateQPEx(r.Context, &init)
	if err != nil {
		return []string{errnoName(err), "-", "-", "-", "-", "-", "-", "-"}
	}
	require.NoError(t, verbs.DestroyQP(first))
	s := newScene(r, b, kind, opcode, func(send, recv *ibv.CQ) *ibv.QP {
		attr := init
		attr.SendCQ, attr.RecvCQ = ibv.PtrTo(send), ibv.PtrTo(recv)
		if opcode == ibv.WR_LOCAL_INV { // on the same queue pair
			attr.SendOpsFlags |= ibv.QP_EX_WITH_BIND_MW
		}
		qp, err := verbs.CreateQPEx(r.Context, &attr)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(qp)) })
		return qp
	})
	err = s.build(t, flag, setter)
	return append([]string{"0", errnoName(err)}, s.outcome(t, err, flag)...)
}

// build posts the scene's opcode as one program, since the provider holds a lock from ibv_wr_start to ibv_wr_complete.
func (s *scene) build(t *testing.T, flag ibv.SendFlags, setter string) error {
	t.Helper()
	x, err := verbs.QPToQPEx(s.p.A)
	require.NoError(t, err)
	require.NotNil(t, x)
	var p program.Program
	qp := uint64(address(x))
	remote, rkey := s.remote.Address(0), uint64(s.remote.MR.RKey)
	imm := uint64(ibv.ToBE32(0x01020304))
	p.Call(uintptr(x.WRStart), qp)
	p.Store(address(&x.WRID), 8, 1)
	p.Store(address(&x.WRFlags), 4, uint64(flag))
	call := func(slot ibv.FuncPtr, args ...uint64) {
		require.NotZero(t, slot, "a queue pair with the builder has no slot for it")
		p.Call(uintptr(slot), append([]uint64{qp}, args...)...)
	}
	switch s.opcode {
	case ibv.WR_RDMA_WRITE:
		call(x.WRRDMAWrite, rkey, remote)
	case ibv.WR_RDMA_WRITE_WITH_IMM:
		call(x.WRRDMAWriteImm, rkey, remote, imm)
	case ibv.WR_SEND:
		call(x.WRSend)
	case ibv.WR_SEND_WITH_IMM:
		call(x.WRSendImm, imm)
	case ibv.WR_SEND_WITH_INV:
		call(x.WRSendInv, uint64(s.key))
	case ibv.WR_RDMA_READ:
		call(x.WRRDMARead, rkey, remote)
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		call(x.WRAtomicCmpSwp, rkey, remote, before, swapped)
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		call(x.WRAtomicFetchAdd, rkey, remote, 1)
	case ibv.WR_LOCAL_INV:
		call(x.WRLocalInv, uint64(s.key))
	case ibv.WR_BIND_MW:
		wr := &testbed.Records[ibv.SendWR](s.Testbed, 1)[0]
		key := testbed.Bind(wr, s.window, s.local)
		call(x.WRBindMW, uint64(address(s.window)), uint64(key), uint64(address(&wr.BindMW().BindInfo)))
	case ibv.WR_TSO:
		header := s.Memory(64)
		call(x.WRSendTSO, uint64(address(&header[0])), 32, 256)
	case ibv.WR_FLUSH:
		call(x.WRFlush, rkey, remote, moved, uint64(ibv.FLUSH_GLOBAL), uint64(ibv.FLUSH_RANGE))
	case ibv.WR_ATOMIC_WRITE:
		call(x.WRAtomicWrite, rkey, remote, uint64(address(&s.local.Bytes[0])))
	}
	if s.kind == ibv.QPT_UD {
		call(x.WRSetUDAddr, uint64(address(s.ah)), uint64(s.p.B.QPNum), testbed.QKey)
	}
	switch setter {
	case byInline:
		call(x.WRSetInlineData, uint64(uintptr(unsafe.Pointer(&s.local.Bytes[0]))), uint64(s.length()))
	case bySGE:
		call(x.WRSetSGE, uint64(s.local.MR.LKey), s.local.Address(0), uint64(s.length()))
	}
	p.Call(uintptr(x.WRComplete), qp)
	if n := p.Run(runtime.Blocking); n != 0 {
		return syscall.Errno(n)
	}
	return nil
}
