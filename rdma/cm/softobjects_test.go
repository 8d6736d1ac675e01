// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftCounters: the device of an ID returns the counters of its fabric.
func TestSoftCounters(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	d, err := s.resolved().Device()
	require.NoError(t, err)
	all, err := d.HWCounters(1)
	require.NoError(t, err)
	assert.Contains(t, all, "rdma_sends")
	assert.Equal(t, s.f.HWCounters(d.Name()), all)
}

// TestSoftLargestMessage: the maximum message size is queried once for connected queue pairs, and every time for
// datagrams.
func TestSoftLargestMessage(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	id := s.resolved()
	shared, err := id.share()
	require.NoError(t, err)
	port, err := shared.device.Port(id.PortNum())
	require.NoError(t, err)
	require.NotZero(t, port.MaxMsgSz)
	assert.Equal(t, port.MaxMsgSz, id.maxMessage(shared, ibv.QPT_RC))
	shared.messages.Store(id.PortNum(), uint32(5))
	assert.EqualValues(t, 5, id.maxMessage(shared, ibv.QPT_RC), "the device is not queried again")
	assert.EqualValues(t, rdma.MTUBytes(port.ActiveMTU), id.maxMessage(shared, ibv.QPT_UD))
}

// TestSoftCreateQPEx: the queue pair has the requested attributes and works like one of CreateQP.
func TestSoftCreateQPEx(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	id := s.resolved()
	d, err := id.Device()
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	for _, create := range []func() error{
		func() error { _, err := id.CreateQP(nil, nil, rdma.QueueOptions{}); return err },
		func() error { _, err := id.CreateQPEx(nil, rdma.QueueOptions{}); return err },
		func() error { _, err := id.CreateSRQEx(nil, rdma.QueueOptions{}); return err },
	} {
		err := create()
		assert.ErrorContains(t, err, "the attributes are nil")
		assert.ErrorIs(t, err, syscall.EINVAL)
	}
	attr := ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SQSigAll: 1, Cap: softAttr.Cap, CompMask: ibv.QP_INIT_ATTR_PD,
		PD: pd.Ptr()}
	before := attr
	qp, err := id.CreateQPEx(&attr, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Equal(t, before, attr, "the caller's attributes are unchanged")
	assert.Same(t, pd, qp.PD())
	_, err = id.CreateQPEx(&attr, rdma.QueueOptions{})
	assert.ErrorContains(t, err, "rdma_create_qp_ex")
	assert.ErrorContains(t, err, "already has a queue pair")
	assert.ErrorIs(t, err, syscall.EINVAL)
	mr, err := id.RegMsgs(make([]byte, 8))
	require.NoError(t, err, "created in the queue pair's domain")
	require.NoError(t, id.PostRecv(5, mr.Bytes(), mr))
	require.NoError(t, id.Connect(timeout(t), nil, nil))
	other := s.request()
	require.NoError(t, other.Accept(timeout(t), nil, nil))
	s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
	s.event(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, other.PostSend(1, []byte("hello"), nil, ibv.SEND_INLINE))
	wc, err := id.GetRecvComp(timeout(t))
	require.NoError(t, err)
	assert.EqualValues(t, 5, wc.WRID)
	assert.Equal(t, "hello", string(mr.Bytes()[:wc.ByteLen]))
	require.NoError(t, qp.Close())
	require.NoError(t, mr.Close())
	require.NoError(t, pd.Close())
}

// TestSoftCreateSRQEx creates an XRC shared receive queue and the queue pair of a target.
func TestSoftCreateSRQEx(t *testing.T) {
	f := newFabric(t, soft.Options{})
	info, err := GetAddrInfoOn(context.Background(), f, "127.0.0.1", "0",
		Hints{Flags: rdmacm.RAI_PASSIVE, QPType: ibv.QPT_XRC_RECV, PortSpace: rdmacm.PS_IB})
	require.NoError(t, err)
	defer info.Close()
	id, err := CreateEP(context.Background(), info, nil, nil, rdma.QueueOptions{})
	keep(t, id, err)
	assert.Equal(t, netip.MustParseAddr("127.0.0.1"), id.LocalAddr().Addr())
	d, err := id.Device()
	require.NoError(t, err)
	domain, err := d.OpenXRCD(&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1,
		Oflags: 0o100})
	require.NoError(t, err)
	cq, err := d.CreateCQ(8, nil, 0)
	require.NoError(t, err)
	attr := ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, XRCD: domain.Ptr(), CQ: cq.Ptr(),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
	}
	srq, err := id.CreateSRQEx(&attr, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Same(t, srq, id.SRQ())
	number, err := srq.Num()
	require.NoError(t, err)
	assert.NotZero(t, number)
	_, err = id.CreateSRQEx(&attr, rdma.QueueOptions{})
	assert.ErrorContains(t, err, "already has a shared receive queue")
	qp, err := id.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD,
		XRCD: domain.Ptr()}, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Equal(t, ibv.QPT_XRC_RECV, qp.Type())
	_, err = id.GetRecvComp(timeout(t))
	assert.ErrorContains(t, err, "the queue has no completion channel", "the receive completion queue is in use")
	_, err = id.GetSendComp(timeout(t))
	assert.ErrorContains(t, err, "the queue pair has no such completion queue")
	require.NoError(t, qp.Close())
	require.NoError(t, srq.Close())
	require.NoError(t, cq.Close())
	require.NoError(t, domain.Close())
}

// TestSoftXRC: the shared receive queue of a target is of type XRC, and its completions arrive in the queue that C
// polls.
func TestSoftXRC(t *testing.T) {
	f := newFabric(t, soft.Options{})
	end := func(at string, flags rdmacm.AddrInfoFlags, kind ibv.QPType) *ID {
		info, err := GetAddrInfoOn(context.Background(), f, "127.0.0.1", at,
			Hints{Flags: flags, QPType: kind, PortSpace: rdmacm.PS_IB})
		require.NoError(t, err)
		defer info.Close()
		id, err := CreateEP(context.Background(), info, nil, nil, rdma.QueueOptions{})
		return keep(t, id, err)
	}
	l := end("7471", rdmacm.RAI_PASSIVE, ibv.QPT_XRC_RECV)
	require.NoError(t, l.Listen(1))
	client := end("7471", 0, ibv.QPT_XRC_SEND)
	_, err := client.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_XRC_SEND, SQSigAll: 1,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxInlineData: 16}}, rdma.QueueOptions{})
	require.NoError(t, err)

	numbers := make(chan uint32, 1)
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			id, _, err := l.GetRequest(timeout(t))
			if err != nil {
				return err
			}
			srq, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
			if err != nil {
				return err
			}
			assert.Equal(t, ibv.SRQT_XRC, srq.Type())
			if _, err = id.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_XRC_RECV}, rdma.QueueOptions{}); err != nil {
				return err
			}
			mr, err := id.RegMsgs(make([]byte, 16))
			if err != nil {
				return err
			}
			if err = id.PostRecv(7, mr.Bytes(), mr); err != nil {
				return err
			}
			number, err := srq.Num()
			if err != nil {
				return err
			}
			if err = id.Accept(timeout(t), nil, nil); err != nil {
				return err
			}
			numbers <- number
			wc, err := id.GetRecvComp(timeout(t))
			if err != nil {
				return err
			}
			assert.EqualValues(t, 7, wc.WRID)
			assert.Equal(t, "to an SRQ", string(mr.Bytes()[:wc.ByteLen]))
			return errors.Join(id.Disconnect(timeout(t)), id.QP().Close(), mr.Close(), id.Close())
		}()
	}()
	require.NoError(t, client.Connect(timeout(t), nil, nil))
	b, err := rdma.NewSendBatch(1, 1, 16)
	keep(t, b, err)
	b.Send(8).Inline([]byte("to an SRQ")).XRC(<-numbers)
	_, err = client.QP().PostSend(b)
	require.NoError(t, err)
	wc, err := client.GetSendComp(timeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	require.NoError(t, client.Disconnect(timeout(t)))
	require.NoError(t, <-served)
}
