// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// tagged is a sender, and a receiver with a shared receive queue that matches tags.
type tagged struct {
	t                *testing.T
	pd               *rdma.PD
	srq              *rdma.SRQ
	cq               *rdma.CQ // completion queue of the shared receive queue
	polls            *rdma.PollProgram
	sender, receiver *rdma.QP
	here, there      *rdma.MR
	channel          *rdma.CompChannel
}

// matching creates a shared receive queue that matches tags.
func matching(pd *rdma.PD, cq *rdma.CQ) (*rdma.SRQ, error) {
	return pd.Device().CreateSRQEx(&ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: pd.Ptr(), CQ: cq.Ptr(),
		TMCap: ibv.TMCap{MaxNumTags: mostTags, MaxOps: mostOps}, CompMask: ibv.SRQ_INIT_ATTR_TYPE |
			ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM}, rdma.QueueOptions{})
}

func newTagged(t *testing.T) *tagged {
	t.Helper()
	device, err := rdma.Open(Device)
	keep(t, device, err)
	pd, err := device.AllocPD()
	keep(t, pd, err)
	g := &tagged{t: t, pd: pd}
	g.channel, err = device.CreateCompChannel()
	keep(t, g.channel, err)
	g.cq, err = device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 64, Channel: g.channel.Ptr(), WCFlags: tagValues})
	keep(t, g.cq, err)
	g.polls, err = g.cq.NewPollProgram(1)
	keep(t, g.polls, err)
	g.srq, err = matching(pd, g.cq)
	keep(t, g.srq, err)
	sent, err := device.CreateCQ(64, g.channel, 0)
	keep(t, sent, err)
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ
	for _, mr := range []**rdma.MR{&g.here, &g.there} {
		*mr, err = pd.RegMR(make([]byte, 1<<14), access)
		keep(t, *mr, err)
	}
	g.sender, err = pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: sent.Ptr(), RecvCQ: sent.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
	keep(t, g.sender, err)
	g.receiver, err = pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: sent.Ptr(), RecvCQ: g.cq.Ptr(),
		SRQ: g.srq.Ptr(), Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}, rdma.QueueOptions{})
	keep(t, g.receiver, err)
	for from, to := range map[*rdma.QP]*rdma.QP{g.sender: g.receiver, g.receiver: g.sender} {
		end, err := to.Endpoint()
		require.NoError(t, err)
		assert.NotZero(t, end.LID)
		attr, err := from.ConnectAttr(end)
		require.NoError(t, err)
		attr.RNRRetry = 7 // unlimited, since the sender may learn late that its data was read
		require.NoError(t, from.ConnectWith(attr))
	}
	return g
}

// change posts one operation and returns the tag's handle.
func (g *tagged) change(fill func(b *rdma.TagBatch) rdma.TagRequest) uint32 {
	g.t.Helper()
	b, err := rdma.NewTagBatch(1, 1)
	require.NoError(g.t, err)
	defer b.Close()
	r := fill(b)
	_, err = g.srq.PostTags(b)
	require.NoError(g.t, err)
	return r.Handle()
}

// add adds a tag. Its messages complete with tag+1000.
func (g *tagged) add(tag uint64, at ibv.SGE) uint32 {
	g.t.Helper()
	handle := g.change(func(b *rdma.TagBatch) rdma.TagRequest {
		return b.AddTag(tag, 1000+tag, tag, ^uint64(0)).Add(at).Signaled()
	})
	g.expect(tag, ibv.WC_TM_ADD, 0)
	return handle
}

// message sends a message with a header. data is the payload of an eager message, or the number of bytes that a
// rendezvous announces.
func (g *tagged) message(op ibv.TMHOp, tag uint64, data []byte, more func(rdma.SendRequest)) {
	g.t.Helper()
	m := g.here.Bytes()
	clear(m[:tagHeader])
	m[0] = byte(op)
	binary.BigEndian.PutUint32(m[4:], uint32(tag)+7)
	binary.BigEndian.PutUint64(m[8:], tag)
	n := tagHeader + copy(m[tagHeader:], data)
	send(g.t, g.sender, func(b *rdma.SendBatch) {
		r := b.Send(5).Add(g.here.SGE(0, uint32(n))).Signaled()
		if more != nil {
			more(r)
		}
	})
}

func (g *tagged) sent() {
	g.t.Helper()
	success(g.t, g.sender.SendCQ(), ibv.WC_SEND, 5)
}

// next returns the next completion of the shared receive queue.
func (g *tagged) next() rdma.Completion {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	c, err := g.cq.WaitProgram(ctx, g.polls)
	require.NoError(g.t, err)
	require.Len(g.t, c, 1)
	return c[0]
}

// expect returns the next completion, which must be successful.
func (g *tagged) expect(id uint64, opcode ibv.WCOpcode, flags ibv.WCFlags) rdma.Completion {
	g.t.Helper()
	c := g.next()
	assert.Equal(g.t, []any{ibv.WC_SUCCESS, id, opcode, flags}, []any{c.Status, c.WRID, c.Opcode, c.Flags})
	return c
}

func (g *tagged) nothing() {
	g.t.Helper()
	time.Sleep(5 * time.Millisecond)
	c, err := g.cq.PollProgram(g.polls)
	require.NoError(g.t, err)
	assert.Empty(g.t, c)
}

// announce fills the sender's memory and sends a message that announces n bytes of it, with a key.
func (g *tagged) announce(tag uint64, n int, key uint32) []byte {
	g.t.Helper()
	data := g.here.Bytes()[4096:][:n]
	for i := range data {
		data[i] = byte(i + n)
	}
	header := binary.BigEndian.AppendUint64(nil, g.here.SGE(4096, 0).Addr)
	header = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(header, key), uint32(n))
	g.message(ibv.TMH_RNDV, tag, header, nil)
	return data
}
