// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// Default messages of ucmatose and udaddy.
const (
	messages    = 10
	messageSize = 100
)

// exchanger is an ID that exchanges messages with one of these programs.
type exchanger struct {
	id *cm.ID
	mr *rdma.MR // a slot for each message, after the GRH, and one to send from
}

const place = 40 + messageSize

func newExchanger(t *testing.T, id *cm.ID) *exchanger {
	t.Helper()
	attr := qpAttr
	if id.PortSpace() == rdmacm.PS_UDP {
		attr.QPType = ibv.QPT_UD
	}
	_, err := id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	x := &exchanger{id: id}
	x.mr, err = id.RegMsgs(bytes.Repeat([]byte{0xee}, (messages+1)*place))
	keep(t, x.mr, err)
	for i := range messages {
		require.NoError(t, id.PostRecv(uint64(i), x.mr.Bytes()[i*place:(i+1)*place], x.mr))
	}
	t.Cleanup(func() { assert.NoError(t, id.QP().Close()) })
	return x
}

// sends sends all messages; with UD, to one queue pair.
func (x *exchanger) sends(t *testing.T, to func(rdma.SendRequest)) {
	t.Helper()
	x.sendsAllBut(t, 0, to)
}

// sendsAllBut is like sends, but does not wait for the completions of the last messages.
func (x *exchanger) sendsAllBut(t *testing.T, last int, to func(rdma.SendRequest)) {
	t.Helper()
	b, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer b.Close()
	for i := range messages {
		b.Reset()
		// udaddy replies to the queue pair number in the immediate data
		r := b.SendImm(2, ibv.ToBE32(x.id.QP().Num())).Signaled().Add(x.mr.SGE(messages*place, messageSize))
		if to != nil {
			to(r)
		}
		_, err := x.id.QP().PostSend(b)
		require.NoError(t, err)
		if i >= messages-last {
			continue
		}
		wc, err := x.id.GetSendComp(withTimeout(t))
		require.NoError(t, err)
		require.NoError(t, rdma.CompletionErr(&wc))
	}
}

// receives waits for all messages and returns the last completion.
func (x *exchanger) receives(t *testing.T, before int) (wc ibv.WC) {
	t.Helper()
	for i := range messages {
		var err error
		wc, err = x.id.GetRecvComp(withTimeout(t))
		require.NoError(t, err)
		require.NoError(t, rdma.CompletionErr(&wc))
		require.EqualValues(t, i, wc.WRID)
		require.EqualValues(t, before+messageSize, wc.ByteLen)
	}
	return wc
}

func TestUCMatoseClientOfC(t *testing.T) { onEnds(t, 1, ucmatoseClient) }

func ucmatoseClient(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.own, 7478)
	ch, err := cm.CreateEventChannelOn(e.backend)
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_TCP)
	l := keep(t, id, err)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(0))
	c := run(t, "ucmatose", "-s", at.Addr().String(), "-p", "7478")
	request := expect(t, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
	x := newExchanger(t, keep(t, request.ID, nil))
	require.NoError(t, x.id.Accept(withTimeout(t), nil, nil))
	expect(t, ch, rdmacm.CM_EVENT_ESTABLISHED)
	x.sends(t, nil)
	x.receives(t, 0)
	require.NoError(t, x.id.Disconnect(withTimeout(t)))
	expect(t, ch, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Contains(t, c.ended(t), "return status 0")
}

func TestUCMatoseServerOfC(t *testing.T) { onEnds(t, 1, ucmatoseServer) }

func ucmatoseServer(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.theirs, 7479)
	s := run(t, "ucmatose", "-b", at.Addr().String(), "-p", "7479")
	ch, x, _ := exchanging(t, e, rdmacm.PS_TCP, at)
	x.receives(t, 0)
	x.sendsAllBut(t, 1, nil)
	expect(t, ch, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, x.id.Disconnect(withTimeout(t)))
	_, err := x.id.GetSendComp(withTimeout(t)) // fails if the peer exited before it acknowledged; see TestMessageBothWays
	require.NoError(t, err)
	assert.Contains(t, s.ended(t), "return status 0")
}

// exchanging returns the end that connected to a C program, or resolved its address.
func exchanging(t *testing.T, e ends, space rdmacm.PortSpace, at netip.AddrPort) (ch *cm.EventChannel, x *exchanger,
	answer cm.Event) {
	t.Helper()
	ch, err := cm.CreateEventChannelOn(e.backend)
	keep(t, ch, err)
	retry(t, func() (*cm.ID, error) {
		id, err := ch.CreateID(space)
		keep(t, id, err)
		require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, at, time.Second))
		expect(t, ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
		require.NoError(t, id.ResolveRoute(withTimeout(t), time.Second))
		expect(t, ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
		x = newExchanger(t, id)
		require.NoError(t, id.Connect(withTimeout(t), nil, nil))
		answer, err = ch.Event(withTimeout(t))
		require.NoError(t, err)
		if answer.Type != rdmacm.CM_EVENT_ESTABLISHED {
			return nil, fmt.Errorf("%v", answer)
		}
		return id, nil
	})
	return ch, x, answer
}

// toUD returns a function that addresses datagrams to a queue pair.
func (x *exchanger) toUD(t *testing.T, attr ibv.AHAttr, qpn uint32) func(rdma.SendRequest) {
	t.Helper()
	pd, err := x.id.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&attr)
	keep(t, ah, err)
	return func(r rdma.SendRequest) { r.UD(ah.Ptr(), qpn, rdmacm.UDP_QKEY) }
}

func TestUDAddyClientOfC(t *testing.T) { onEnds(t, 1, udaddyClient) }

func udaddyClient(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.own, 7174)
	ch, err := cm.CreateEventChannelOn(e.backend)
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_UDP)
	l := keep(t, id, err)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(0))
	c := run(t, "udaddy", "-s", at.Addr().String())
	request := expect(t, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
	x := newExchanger(t, keep(t, request.ID, nil))
	require.NoError(t, x.id.Accept(withTimeout(t), &rdmacm.ConnParam{QPNum: x.id.QP().Num()}, nil))
	wc := x.receives(t, 40)
	pd, err := x.id.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAHFromWC(&wc, (*ibv.GRH)(unsafe.Pointer(&x.mr.Bytes()[(messages-1)*place])), x.id.PortNum())
	keep(t, ah, err)
	x.sends(t, func(r rdma.SendRequest) { r.UD(ah.Ptr(), wc.ImmData().Host(), rdmacm.UDP_QKEY) })
	assert.Contains(t, c.ended(t), "return status 0")
}

func TestUDAddyServerOfC(t *testing.T) { onEnds(t, 1, udaddyServer) }

func udaddyServer(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.theirs, 7174)
	s := run(t, "udaddy", "-b", at.Addr().String())
	_, x, answer := exchanging(t, e, rdmacm.PS_UDP, at)
	x.sends(t, x.toUD(t, answer.UD.AHAttr, answer.UD.QPNum))
	x.receives(t, 40)
	assert.Contains(t, s.ended(t), "return status 0")
}

// TestMCKeyOfC sends datagrams to a multicast group of which C's mckey is a member. The other direction is not tested:
// on Linux 6.12, all datagrams that mckey sends are often lost, even if the receiver uses librdmacm.
func TestMCKeyOfC(t *testing.T) {
	inGuest(t, "the other end is a program of rdmacm-utils")
	at, group := address(t, 0), netip.MustParseAddrPort("239.7.7.10:0")
	ch, err := createEventChannel()
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_UDP)
	keep(t, id, err)
	require.NoError(t, id.Bind(at))
	x := newExchanger(t, id)
	_, _, err = id.Join(withTimeout(t), group)
	require.NoError(t, err)
	e := expect(t, ch, rdmacm.CM_EVENT_MULTICAST_JOIN)
	defer func() { assert.NoError(t, id.Leave(group)) }()
	c := run(t, "mckey", "-m", group.Addr().String(), "-b", at.Addr().String(), "-C", strconv.Itoa(messages), "-S",
		strconv.Itoa(messageSize))
	to := x.toUD(t, e.UD.AHAttr, e.UD.QPNum)
	for { // mckey does not report when it has joined
		select {
		case err := <-c.done:
			require.NoError(t, err, "%s", &c.out)
			assert.Contains(t, c.out.String(), "return status 0")
			return
		case <-time.After(50 * time.Millisecond):
			x.sends(t, to)
		}
	}
}
