// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package direct

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/runtime"
)

// chance returns true once in n times, at random.
func (w *twin) chance(n int) bool { return w.rand.IntN(n) == 0 }

// opcodesOf returns the operations of a queue pair type. libmlx5 also accepts others, and writes invalid requests for
// them.
func opcodesOf(kind ibv.QPType) []ibv.WROpcode {
	all := []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM}
	if kind != ibv.QPT_UD {
		all = append(all, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_LOCAL_INV, ibv.WR_BIND_MW)
	}
	if kind == ibv.QPT_RC || kind == ibv.QPT_XRC_SEND {
		all = append(all, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP,
			ibv.WR_ATOMIC_FETCH_AND_ADD)
	}
	return all
}

// fill returns a random list of requests.
func (w *twin) fill() *ibv.SendWR {
	n := 1
	if w.chance(2) {
		n = 1 + w.rand.IntN(most)
	}
	l := w.list
	all := opcodesOf(w.qp.QPType)
	for i := range n {
		r := &l.wrs[i]
		*r = ibv.SendWR{WRID: w.rand.Uint64(), Opcode: all[w.rand.IntN(len(all))],
			SendFlags: ibv.SendFlags(w.rand.Uint32()) & (ibv.SEND_SIGNALED | ibv.SEND_SOLICITED | ibv.SEND_FENCE)}
		if w.chance(200) {
			r.Opcode = ibv.WROpcode(1000 + w.rand.Uint32()>>8)
		}
		*r.ImmData() = ibv.BE32(w.rand.Uint32())
		r.NumSGE = int32(w.rand.IntN(entries))
		if w.chance(100) {
			r.NumSGE = entries
		}
		r.SGList = ibv.PtrTo(&l.sges[i][0])
		r.WR.RDMA().RemoteAddr, r.WR.RDMA().RKey = w.rand.Uint64(), w.rand.Uint32()
		inline := w.chance(3) && r.Opcode != ibv.WR_RDMA_READ
		switch r.Opcode {
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			inline = false
			*r.WR.Atomic() = ibv.SendAtomic{RemoteAddr: w.rand.Uint64(), CompareAdd: w.rand.Uint64(),
				Swap: w.rand.Uint64(), RKey: w.rand.Uint32()}
		case ibv.WR_BIND_MW, ibv.WR_LOCAL_INV:
			inline, r.NumSGE = false, 0
			w.bind(r, i)
		}
		if w.qp.QPType == ibv.QPT_UD {
			*r.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(w.ah), RemoteQPN: w.rand.Uint32() >> 8, RemoteQKey: w.rand.Uint32()}
		}
		r.QPType.XRC().RemoteSRQN = w.rand.Uint32() >> 8
		for j := range l.sges[i] {
			e := &l.sges[i][j]
			*e = ibv.SGE{Addr: w.rand.Uint64(), Length: w.rand.Uint32(), LKey: w.rand.Uint32()}
			if inline || reads(r.Opcode) {
				e.Length = uint32(w.rand.IntN(50))
				e.Addr = uint64(addressOf(w.data)) + uint64(w.rand.IntN(data-50))
			}
			if w.chance(8) {
				e.Length = 0
			}
		}
		if inline {
			r.SendFlags |= ibv.SEND_INLINE
		}
		if i > 0 {
			l.wrs[i-1].Next = ibv.PtrTo(r)
		}
	}
	return &l.wrs[0]
}

// reads reports whether an operation returns data.
func reads(o ibv.WROpcode) bool {
	return o == ibv.WR_RDMA_READ || o == ibv.WR_ATOMIC_CMP_AND_SWP || o == ibv.WR_ATOMIC_FETCH_AND_ADD
}

// bind sets the fields of a request that binds a window.
func (w *twin) bind(r *ibv.SendWR, i int) {
	mw, mr := &w.list.mws[i], &w.list.mr
	mw.RKey, mw.Type = w.rand.Uint32(), ibv.MW_TYPE_1+ibv.MWType(w.rand.IntN(2))
	mr.LKey = w.rand.Uint32()
	if r.Opcode == ibv.WR_LOCAL_INV {
		return
	}
	info := ibv.MWBindInfo{MR: ibv.PtrTo(mr), Addr: w.rand.Uint64(), MWAccessFlags: ibv.AccessFlags(w.rand.Uint32())}
	switch {
	case w.chance(50):
		info.Length = 1<<31 + 1 + w.rand.Uint64()>>2
	case !w.chance(4):
		info.Length = uint64(w.rand.Uint32() >> 1)
	}
	*r.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(mw), RKey: w.rand.Uint32(), BindInfo: info}
}

// errnoOf returns the errno of a failed C call.
func errnoOf(err error) int32 {
	var e *runtime.CallError
	if errors.As(err, &e) {
		return int32(e.Errno)
	}
	return 0
}

// post posts the same list to both sides.
func (w *twin) post(t *testing.T) {
	list := w.fill()
	before := w.of.send.next
	w.list.bad = [2]ibv.Ptr[ibv.SendWR]{}
	c := errnoOf(libibverbs.PostSend(w.qp, list, &w.list.bad[0]))
	g := w.postGo(list)
	if c != g || w.list.bad[0] != w.list.bad[1] {
		t.Fatalf("libmlx5 answers %d at %#x, Go %d at %#x", c, w.list.bad[0], g, w.list.bad[1])
	}
	if c != 0 && w.of.send.next != before {
		// After a failed request, libmlx5 rings with the contents of the failed slot, this package with the last good
		// request.
		w.same("register")
	}
	w.equal(t, "post")
	for at, i := before, 0; at != w.of.send.next; i++ {
		s := &w.of.send
		control := (*mlx5dv.MLX5WQECtrlSeg)(unsafe.Add(s.first, uintptr(at&s.mask)*block))
		p := posted{at: uint16(at), opcode: uint8(control.OpmodIdxOpcode.Host())}
		if reads(w.list.wrs[i].Opcode) {
			for _, e := range w.list.sges[i][:w.list.wrs[i].NumSGE] {
				p.bytes += e.Length
			}
		}
		w.sent = append(w.sent, p)
		at += (control.QPNDs.Host()&0x3f + 3) / 4
	}
}

// postGo posts a list, half of the time with PostOne if possible.
func (w *twin) postGo(list *ibv.SendWR) (errno int32) {
	if list.Next == 0 && w.chance(2) && w.of.PostOne(list) {
		w.shorter++
		return 0
	}
	return w.of.PostSend(w.qp, list, &w.list.bad[1])
}

// same copies an area from libmlx5 to the shadow.
func (w *twin) same(name string) {
	for _, a := range w.areas {
		if a.name == name {
			copy(a.shadows, a.c)
		}
	}
}

// receive posts the same receives to both sides.
func (w *twin) receive(t *testing.T) {
	n := 1 + w.rand.IntN(most)
	l := w.recvs
	for i := range n {
		r := &l.wrs[i]
		*r = ibv.RecvWR{WRID: w.rand.Uint64(), SGList: ibv.PtrTo(&l.sges[i][0]), NumSGE: int32(w.rand.IntN(4))}
		if w.chance(100) {
			r.NumSGE = entries
		}
		for j := range l.sges[i] {
			l.sges[i][j] = ibv.SGE{Addr: uint64(addressOf(w.data)) + uint64(w.rand.IntN(data-100)),
				Length: uint32(w.rand.IntN(100)), LKey: w.rand.Uint32()}
		}
		if i > 0 {
			l.wrs[i-1].Next = ibv.PtrTo(r)
		}
	}
	l.bad = [2]ibv.Ptr[ibv.RecvWR]{}
	before := w.of.recv.posted
	c := errnoOf(libibverbs.PostRecv(w.qp, &l.wrs[0], &l.bad[0]))
	g := w.of.PostRecv(w.qp, &l.wrs[0], &l.bad[1])
	if c != g || l.bad[0] != l.bad[1] {
		t.Fatalf("libmlx5 answers %d at %#x, Go %d at %#x", c, l.bad[0], g, l.bad[1])
	}
	w.equal(t, "receive")
	for i := 0; before != w.of.recv.posted; before, i = before+1, i+1 {
		r := room{at: uint16(before)}
		for _, e := range l.sges[i][:l.wrs[i].NumSGE] {
			r.bytes += e.Length
		}
		w.received = append(w.received, r)
	}
}

// completion returns a random completion for a posted request or receive. ok is false if there is none.
func (w *twin) completion() (e mlx5dv.MLX5CQE64, ok bool) {
	raw := (*[64]byte)(unsafe.Pointer(&e))
	for i := range raw {
		raw[i] = byte(w.rand.Uint32())
	}
	e.App, e.SRQNUIdx = 0, ibv.ToBE32(w.user) // no tag matching
	failed := w.chance(4)
	var opcode, operation uint8
	var most uint32
	switch {
	case w.chance(2) && len(w.sent) > 0:
		i := w.rand.IntN(len(w.sent)) // earlier requests complete with it
		p := w.sent[i]
		w.sent = w.sent[i+1:]
		e.WQECounter, operation, opcode, most = ibv.ToBE16(p.at), p.opcode, mlx5dv.MLX5_CQE_REQ, p.bytes
		if failed {
			opcode = mlx5dv.MLX5_CQE_REQ_ERR
		}
	case len(w.received) > 0:
		e.WQECounter, most = ibv.ToBE16(w.received[0].at), w.received[0].bytes
		w.received = w.received[1:]
		opcode = mlx5dv.MLX5_CQE_RESP_WR_IMM + uint8(w.rand.IntN(4))
		if failed {
			opcode = mlx5dv.MLX5_CQE_RESP_ERR
		}
		e.ByteCnt = ibv.ToBE32(w.rand.Uint32())
	default:
		return e, false
	}
	e.SOPDropQPN = ibv.ToBE32(uint32(operation)<<24 | w.qp.QPNum)
	e.OpOwn = opcode<<4 | e.OpOwn&mlx5dv.MLX5_CQE_OWNER_MASK | e.OpOwn&2
	if failed && w.chance(2) {
		known := []uint8{1, 2, 4, 5, 6, 16, 17, 18, 19, 20, 21, 22, 34}
		(*mlx5dv.MLX5ErrCQE)(unsafe.Pointer(&e)).Syndrome = known[w.rand.IntN(len(known))]
	}
	if most > 0 && opcode == mlx5dv.MLX5_CQE_REQ && operation != mlx5dv.MLX5_OPCODE_RDMA_READ {
		most = 8 // libmlx5 sets the length of atomic operations' entries to 8
	}
	misread := opcode == mlx5dv.MLX5_CQE_REQ && w.in.size == 128 && os.Getenv(envOld) != ""
	// among sends, only those of an RC queue pair have data in the completion
	carries := isReceive(opcode) || most > 0 && w.qp.QPType == ibv.QPT_RC
	if !failed && carries && !misread && w.chance(2) {
		e.OpOwn |= mlx5dv.MLX5_INLINE_SCATTER_32
		e.ByteCnt = ibv.ToBE32(min(most, uint32(w.rand.IntN(33))))
		if w.in.size == 128 && w.chance(2) {
			e.OpOwn ^= mlx5dv.MLX5_INLINE_SCATTER_32 | mlx5dv.MLX5_INLINE_SCATTER_64
			e.ByteCnt = ibv.ToBE32(min(most, uint32(w.rand.IntN(65))))
		}
	}
	return e, true
}

// write writes a completion to both sides' queues.
func (w *twin) write(e mlx5dv.MLX5CQE64) {
	owner := uint8(w.next >> w.in.round & 1)
	e.OpOwn = e.OpOwn&^mlx5dv.MLX5_CQE_OWNER_MASK | owner
	for _, ring := range w.cqes {
		slot := ring[uintptr(w.next&w.in.mask)*w.in.size:][:w.in.size]
		for i := range slot[:w.in.size-cqe] {
			slot[i] = byte(i) ^ byte(w.next)
		}
		copy(slot[w.in.size-cqe:], unsafe.Slice((*byte)(unsafe.Pointer(&e)), cqe))
	}
	w.next++
}

// poll writes completions and polls them on both sides.
func (w *twin) poll(t *testing.T) {
	n := 0
	for range w.rand.IntN(most) {
		if e, ok := w.completion(); ok {
			w.write(e)
			n++
		}
	}
	ask := max(n, 1)
	w.clear()
	before := *(*[data]byte)(w.data)
	extended := w.chance(2)
	var c int
	if extended {
		c = w.pollExtended(t, w.list.wcs[0][:ask])
	} else {
		c, _ = libibverbs.PollCQ(w.cq, ask, &w.list.wcs[0][0])
	}
	after := *(*[data]byte)(w.data)
	copy(w.data, before[:])
	var g int32
	if extended {
		g = w.in.PollExtended(w.cq, w.list.wcs[1][:ask])
	} else {
		g = w.in.Poll(w.cq, w.list.wcs[1][:ask])
	}
	if c != int(g) || c != n {
		t.Fatalf("libmlx5 polls %d, Go %d, of %d", c, g, n)
	}
	for i := range w.list.wcs[0] {
		if extended { // there is no function for this field
			w.list.wcs[0][i].PKeyIndex = w.list.wcs[1][i].PKeyIndex
		}
		if bytesOf(&w.list.wcs[0][i]) != bytesOf(&w.list.wcs[1][i]) {
			require.Equal(t, w.list.wcs[0][i], w.list.wcs[1][i], "completion %d", i)
		}
	}
	if !bytes.Equal(w.data, after[:]) {
		t.Fatal("small messages inside completions come to other places")
	}
	w.equal(t, "poll")
}

// pollExtended polls libmlx5's queue with the functions of extended completion queues. It reads all fields of
// successful completions, and the valid fields of failed ones.
func (w *twin) pollExtended(t *testing.T, wcs []ibv.WC) (n int) {
	t.Helper()
	err := libibverbs.StartPoll(w.ex, new(ibv.PollCQAttr))
	if errnoOf(err) == int32(syscall.ENOENT) {
		return 0
	}
	for ; err == nil; n++ {
		wc := &wcs[n]
		wc.WRID, wc.Status = w.ex.WRID, w.ex.Status
		wc.QPNum = must(libibverbs.WCReadQPNum(w.ex))
		if wc.Status != ibv.WC_SUCCESS {
			wc.VendorErr, wc.WCFlags = must(libibverbs.WCReadVendorErr(w.ex)), 0
		} else {
			wc.VendorErr = 0
			wc.Opcode = must(libibverbs.WCReadOpcode(w.ex))
			wc.WCFlags = must(libibverbs.WCReadWCFlags(w.ex))
			wc.ByteLen = must(libibverbs.WCReadByteLen(w.ex))
			if *wc.ImmData() = must(libibverbs.WCReadImmData(w.ex)); wc.WCFlags&ibv.WC_WITH_INV != 0 {
				*wc.InvalidatedRKey() = must(libibverbs.WCReadInvalidatedRKey(w.ex))
			}
			wc.SrcQP = must(libibverbs.WCReadSrcQP(w.ex))
			wc.SLID = uint16(must(libibverbs.WCReadSLID(w.ex)))
			wc.SL = must(libibverbs.WCReadSL(w.ex))
			wc.DLIDPathBits = must(libibverbs.WCReadDLIDPathBits(w.ex))
		}
		if n+1 == len(wcs) {
			n++
			break
		}
		err = libibverbs.NextPoll(w.ex)
	}
	require.NoError(t, libibverbs.EndPoll(w.ex))
	return n
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// bytesOf returns the bytes of a completion, including padding.
func bytesOf(wc *ibv.WC) [unsafe.Sizeof(ibv.WC{})]byte {
	return *(*[unsafe.Sizeof(ibv.WC{})]byte)(unsafe.Pointer(wc))
}

// clear sets both sides' completions to the same bytes, because some fields are left unchanged.
func (w *twin) clear() {
	for i := range w.list.wcs[0] {
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&w.list.wcs[0][i])), unsafe.Sizeof(ibv.WC{}))
		for j := 0; j < len(raw); j += 8 {
			binary.LittleEndian.PutUint64(raw[j:], w.rand.Uint64())
		}
		w.list.wcs[1][i] = w.list.wcs[0][i]
	}
}

// arm requests an event on both sides.
func (w *twin) arm(t *testing.T) {
	only := w.rand.IntN(2)
	require.NoError(t, libibverbs.ReqNotifyCQ(w.cq, only))
	require.Zero(t, w.in.Arm(w.cq, only == 1))
	w.equal(t, "arm")
}

// TestIdentity: for random posts, libmlx5 and this package write the same bytes to queues, doorbell records and
// doorbells, and read the same values from completions.
func TestIdentity(t *testing.T) {
	lists, seed := settings(t)
	var run uint64
	shorter := 0
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND} {
		for _, everyOne := range []bool{false, true} {
			for _, depth := range []uint32{3, 40} {
				run++
				r := rand.New(rand.NewPCG(seed, run))
				w := newTwin(t, kind, everyOne, depth, r)
				w.equal(t, "create")
				for range lists / 16 {
					w.post(t)
					if kind != ibv.QPT_XRC_SEND && w.chance(2) {
						w.receive(t)
					}
					if w.chance(2) {
						w.poll(t)
					}
					if w.chance(16) {
						w.arm(t)
					}
				}
				t.Logf("%v, depth %d, %v: %d requests and %d completions of seed %d", kind, depth, everyOne,
					w.of.send.posted, w.next, seed)
				assert.Greater(t, w.of.send.posted, uint32(lists/64))
				assert.Greater(t, w.next, uint32(lists/64))
				shorter += w.shorter
			}
		}
	}
	assert.Greater(t, shorter, lists/16/40, "number of lists posted by PostOne, in all runs together")
}
