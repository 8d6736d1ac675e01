// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// ring is a data path in Go. It executes writes within the process and keeps the completions of each completion queue
// in a ring.
type ring struct {
	mu    sync.Mutex
	done  map[*ibv.CQ][]ibv.WC
	lists int // number of posts
	recvs []uint64
	flags []ibv.SendFlags // of the last post
	full  bool
}

func (r *ring) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists++
	r.flags = nil
	for w := list; w != nil; w = w.Next.Deref() {
		r.flags = append(r.flags, w.SendFlags)
		if r.full {
			*bad = ibv.PtrTo(w)
			return int32(syscall.ENOMEM)
		}
		data := unsafe.Slice((*byte)(ibv.Ptr[byte](w.SGList.Deref().Addr).Deref()), w.SGList.Deref().Length)
		to := ibv.Ptr[byte](w.WR.RDMA().RemoteAddr)
		if w.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
			word := ibv.Ptr[uint64](w.WR.Atomic().RemoteAddr).Deref()
			*(*uint64)(unsafe.Pointer(&data[0])) = *word
			*word += w.WR.Atomic().CompareAdd
		} else {
			copy(unsafe.Slice(to.Deref(), len(data)), data)
		}
		if w.SendFlags&ibv.SEND_SIGNALED != 0 {
			cq := qp.SendCQ.Deref()
			r.done[cq] = append(r.done[cq], ibv.WC{WRID: w.WRID, QPNum: qp.QPNum, Opcode: ibv.WC_RDMA_WRITE})
		}
		if w.Opcode == ibv.WR_RDMA_WRITE_WITH_IMM {
			cq := qp.RecvCQ.Deref()
			wc := ibv.WC{WRID: r.recvs[0], QPNum: qp.QPNum, Opcode: ibv.WC_RECV_RDMA_WITH_IMM,
				ByteLen: uint32(len(data))}
			*wc.ImmData() = *w.ImmData()
			r.recvs = r.recvs[1:]
			r.done[cq] = append(r.done[cq], wc)
		}
	}
	return 0
}

func (r *ring) PostRecv(_ *ibv.QP, list *ibv.RecvWR, _ *ibv.Ptr[ibv.RecvWR]) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := list; w != nil; w = w.Next.Deref() {
		r.recvs = append(r.recvs, w.WRID)
	}
	return 0
}

func (r *ring) PostSRQRecv(*ibv.SRQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32 {
	return int32(syscall.EOPNOTSUPP)
}

func (r *ring) PostWQRecv(*ibv.WQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32 {
	return int32(syscall.EOPNOTSUPP)
}

func (r *ring) Poll(cq *ibv.CQ, wcs []ibv.WC) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := copy(wcs, r.done[cq])
	r.done[cq] = r.done[cq][n:]
	return int32(n)
}

func (r *ring) Arm(*ibv.CQ, bool) int32 { return 0 }

// ringQueues returns an extended completion queue and an extended queue pair connected to itself.
func ringQueues(t *testing.T, pd *PD, of ...QueueOptions) (*CQ, *QP) {
	d := pd.Device()
	cq, err := d.CreateCQEx(&ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_EX_WITH_QP_NUM | ibv.WC_EX_WITH_BYTE_LEN |
		ibv.WC_EX_WITH_IMM | ibv.WC_EX_WITH_COMPLETION_TIMESTAMP}, of...)
	cq = keep(t, cq, err)
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap:      ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16},
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD | ibv.QP_EX_WITH_ATOMIC_WRITE}
	qp, err := d.CreateQPEx(attr, append(of, QueueOptions{})[0])
	qp = keep(t, qp, err)
	connectToSelf(t, qp)
	return cq, qp
}

// A data path in Go serves batches, programs and polls of all queues of a device, without calls of the provider. A
// queue's Path takes precedence over the device's.
func TestDevicePath(t *testing.T) {
	pd := softPD(t)
	hardware, other := &ring{done: map[*ibv.CQ][]ibv.WC{}}, &ring{done: map[*ibv.CQ][]ibv.WC{}}
	pd.Device().UsePath(hardware)
	mr, err := pd.RegMR(make([]byte, 64), everyAccess)
	mr = keep(t, mr, err)
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mr.Bytes()))), 8)
	at := uint64(mr.Region().Address)

	for name, of := range map[string][]QueueOptions{"of the device": nil, "of the queues": {{Path: other}}} {
		t.Run(name, func(t *testing.T) {
			used, unused := hardware, other
			if of != nil {
				used, unused = other, hardware
			}
			before, posted := unused.lists, used.lists
			cq, qp := ringQueues(t, pd, of...)
			b := sendBatch(t, 2, 1, 0)
			b.Write(5, at+8, mr.RKey()).Add(mr.SGE(0, 8))
			b.Write(6, at+16, mr.RKey()).Add(mr.SGE(8, 8)).Signaled()
			wcs := make([]ibv.WC, 4)
			for round := range uint64(6) { // more than the queue holds: polls release slots
				words[0] = 100 + round
				_, err := qp.PostSend(b)
				require.NoError(t, err)
				require.Equal(t, 100+round, words[2])
				n, err := cq.Poll(wcs)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.EqualValues(t, 6, wcs[0].WRID)
			}

			p, err := qp.NewWRProgram()
			require.NoError(t, err)
			first := p.WriteImm(7, 8, mr.RKey(), 0x1234).Signaled().SGE(8, 8, mr.LKey())
			add := p.FetchAdd(8, 8, mr.RKey(), 3).Signaled().SGE(at+32, 8, mr.LKey())
			inline := p.Write(9, at+40, mr.RKey()).Signaled().Inline([]byte("in line!"))
			first.SetRemote(at+48, mr.RKey())
			first.SetSGE(at, 8, mr.LKey())
			add.SetRemote(at+24, mr.RKey())
			inline.SetID(10)
			polls, err := NewPollProgram(cq.CEx(), 8, ibv.WC_EX_WITH_QP_NUM|ibv.WC_EX_WITH_BYTE_LEN|ibv.WC_EX_WITH_IMM,
				QueueOptions{})
			polls = keep(t, polls, err)
			words[3] = 40
			for round := range uint64(6) {
				words[0] = 200 + round
				_, err := qp.PostRecv(recvs(t, mr, 1))
				require.NoError(t, err)
				require.NoError(t, qp.PostProgram(p))
				require.Equal(t, 200+round, words[6])
				require.Equal(t, 43+3*round, words[3])
				require.Equal(t, 40+3*round, words[4], "value before the operation")
				require.Equal(t, "in line!", string(mr.Bytes()[40:48]))
				found, err := cq.PollProgram(polls)
				require.NoError(t, err)
				require.Len(t, found, 4)
				assert.Equal(t, Completion{WRID: 0, Opcode: ibv.WC_RECV_RDMA_WITH_IMM, QPNum: qp.Num(), ByteLen: 8,
					Imm: 0x1234}, found[1])
				assert.EqualValues(t, 10, found[3].WRID)
			}
			assert.Equal(t, 4, qp.SendQueue().Free())
			signaled := ibv.SEND_SIGNALED
			assert.Equal(t, []ibv.SendFlags{signaled, signaled, signaled | ibv.SEND_INLINE}, used.flags)

			used.full = true
			err = qp.PostProgram(p)
			assert.ErrorIs(t, err, syscall.ENOMEM)
			assert.Equal(t, 4, qp.SendQueue().Free(), "nothing was posted")
			used.full = false

			p.Reset()
			p.AtomicWrite(1, at, mr.RKey(), [8]byte{}).Signaled()
			assert.ErrorIs(t, qp.PostProgram(p), ErrNotSupported, "ibv_send_wr cannot express the operation")
			times, err := NewPollProgram(cq.CEx(), 1, ibv.WC_EX_WITH_COMPLETION_TIMESTAMP, QueueOptions{})
			times = keep(t, times, err)
			_, err = cq.PollProgram(times)
			assert.ErrorIs(t, err, ErrNotSupported, "ibv_poll_cq returns no timestamps")
			assert.Equal(t, 13, used.lists-posted)
			assert.Equal(t, before, unused.lists)
		})
	}

	pd.Device().UsePath(nil)
	before := hardware.lists
	cq, qp := ringQueues(t, pd)
	b := sendBatch(t, 1, 1, 0)
	b.Write(1, at, mr.RKey()).Add(mr.SGE(8, 8)).Signaled()
	_, err = qp.PostSend(b)
	require.NoError(t, err)
	assert.Len(t, pollAll(t, cq, 1), 1)
	assert.Equal(t, before, hardware.lists, "the provider's functions are used again")
	_, err = pd.Device().CreateCQ(4, nil, 0, QueueOptions{}, QueueOptions{})
	assert.ErrorIs(t, err, syscall.EINVAL)
}

// pollAll polls n completions.
func pollAll(t *testing.T, cq *CQ, n int) (all []ibv.WC) {
	wcs := make([]ibv.WC, n)
	for len(all) < n {
		found, err := cq.Poll(wcs[:n-len(all)])
		require.NoError(t, err)
		all = append(all, wcs[:found]...)
	}
	return all
}
