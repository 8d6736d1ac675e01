// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

// program is a running program of rdma-core.
type program struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func run(t *testing.T, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.CommandContext(withTimeout(t), name, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	require.NoError(t, p.cmd.Start())
	go func() { p.done <- p.cmd.Wait() }()
	return p
}

// ended waits until the program exits and checks its status.
func (p *program) ended(t *testing.T) string {
	t.Helper()
	err := <-p.done
	require.NoError(t, err, "output of %s:\n%s", p.cmd, p.out.String())
	return p.out.String()
}

// retry calls f again while a program does not listen yet.
func retry[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		v, err := f()
		if err == nil {
			return v
		}
		require.True(t, time.Now().Before(deadline), "%v", err)
	}
}

// ends describes where Go and C run in a test.
type ends struct {
	backend runtime.Backend // backend of Go; nil for the C library
	own     netip.Addr      // address of Go
	theirs  netip.Addr
}

// onEnds runs a test with a number of connections against C programs: with Go over the backend on the same device, and
// with Go on a software device that is connected to Soft-RoCE, over IPv4 and IPv6.
func onEnds(t *testing.T, connections int, test func(t *testing.T, e ends)) {
	t.Helper()
	inGuest(t, "the other end is a program of rdmacm-utils")
	t.Run("libraries", func(t *testing.T) {
		ip := address(t, 0).Addr()
		test(t, ends{backend: backend(), own: ip, theirs: ip})
	})
	t.Run("packets", func(t *testing.T) {
		a := testbed.OpenAcross(t)
		fabric := a.Soft(t)
		for _, e := range []ends{{fabric, a.Soft4, a.Kernel4}, {fabric, a.Soft6, a.Kernel6}} {
			t.Run(testbed.Version(e.own), func(t *testing.T) { test(t, e) })
		}
		a.NoRepeats(t, 2*connections)
	})
}

// sixteen holds the attributes of rdma_client and rdma_server of rdmacm-utils, which exchange 16 bytes.
var sixteen = ibv.QPInitAttr{Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	MaxInlineData: 16}, SQSigAll: 1}

func TestRDMAClientOfC(t *testing.T) { onEnds(t, 1, rdmaClient) }

func rdmaClient(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.own, 7474)
	info, err := cm.GetAddrInfoOn(withTimeout(t), e.backend, at.Addr().String(), "7474", cm.Hints{Flags: rdmacm.RAI_PASSIVE})
	require.NoError(t, err)
	defer info.Close()
	l, err := cm.CreateEP(withTimeout(t), info, nil, &sixteen, rdma.QueueOptions{})
	keep(t, l, err)
	require.NoError(t, l.Listen(0))
	c := run(t, "rdma_client", "-s", at.Addr().String(), "-p", "7474")
	id, _, err := l.GetRequest(withTimeout(t))
	require.NoError(t, err)
	defer id.Close()
	mr, err := id.RegMsgs(bytes.Repeat([]byte{7}, 16))
	require.NoError(t, err)
	defer mr.Close()
	require.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, id.Accept(withTimeout(t), nil, nil))
	wc, err := id.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.EqualValues(t, 16, wc.ByteLen)
	assert.Equal(t, make([]byte, 16), mr.Bytes(), "it sends zeros")
	require.NoError(t, id.PostSend(2, mr.Bytes(), nil, ibv.SEND_INLINE))
	wc, err = id.GetSendComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	require.NoError(t, id.Disconnect(withTimeout(t)))
	assert.Contains(t, c.ended(t), "rdma_client: end 0")
}

// TestCClientConnectsWithoutTimeout checks that a connection request from C reaches the software device without a
// timeout.
func TestCClientConnectsWithoutTimeout(t *testing.T) {
	const timeout = 2 * time.Second // timeout of rping for rdma_resolve_addr and rdma_resolve_route
	var elapsed time.Duration
	for try := 1; try == 1 || try <= 3 && elapsed >= timeout; try++ { // a busy machine may be slow
		t.Run(strconv.Itoa(try), func(t *testing.T) {
			a := testbed.OpenAcross(t) // with a new cable, since the ends of a used one are in each other's neighbor tables
			ch, err := cm.CreateEventChannelOn(a.Soft(t))
			keep(t, ch, err)
			id, err := ch.CreateID(rdmacm.PS_TCP)
			l := keep(t, id, err)
			require.NoError(t, l.Bind(netip.AddrPortFrom(a.Soft4, 7473)))
			require.NoError(t, l.Listen(0))
			start := time.Now()
			c := run(t, "rping", "-c", "-a", a.Soft4.String(), "-p", "7473", "-C", "1")
			request := expect(t, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
			elapsed = time.Since(start)
			require.NoError(t, request.ID.Reject(nil))
			require.NoError(t, request.ID.Close())
			assert.Error(t, <-c.done, "the request was rejected")
		})
	}
	assert.Less(t, elapsed, timeout)
}

func TestRDMAServerOfC(t *testing.T) { onEnds(t, 1, rdmaServer) }

func rdmaServer(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.theirs, 7475)
	s := run(t, "rdma_server", "-s", at.Addr().String(), "-p", "7475")
	mem := make([]byte, 16)
	id := retry(t, func() (*cm.ID, error) {
		info, err := cm.GetAddrInfoOn(withTimeout(t), e.backend, at.Addr().String(), "7475", cm.Hints{})
		if err != nil {
			return nil, err
		}
		defer info.Close()
		id, err := cm.CreateEP(withTimeout(t), info, nil, &sixteen, rdma.QueueOptions{})
		if err != nil {
			return nil, err
		}
		mr, err := id.RegMsgs(mem)
		require.NoError(t, err)
		require.NoError(t, id.PostRecv(1, mem, mr))
		if err := id.Connect(withTimeout(t), nil, nil); err != nil {
			require.NoError(t, id.QP().Close())
			require.NoError(t, mr.Close())
			require.NoError(t, id.Close())
			return nil, err
		}
		t.Cleanup(func() {
			require.NoError(t, id.QP().Close())
			require.NoError(t, mr.Close())
			require.NoError(t, id.Close())
		})
		return id, nil
	})
	require.NoError(t, id.PostSend(2, []byte("sixteen bytes ok"), nil, ibv.SEND_INLINE))
	wc, err := id.GetSendComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	wc, err = id.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.EqualValues(t, 1, wc.WRID)
	assert.EqualValues(t, 16, wc.ByteLen)
	require.NoError(t, id.Disconnect(withTimeout(t)))
	assert.Contains(t, s.ended(t), "rdma_server: end 0")
}

// ping is one end of rping's protocol. The client sends the address of a buffer; the server reads the buffer,
// acknowledges, gets another address, and writes the data there. Messages have 16 bytes: address, key and length,
// big-endian.
type ping struct {
	id          *cm.ID
	in, out, mr *rdma.MR
}

const pings = 50

// rpingParam returns rping's parameters: one read at a time.
func rpingParam() *rdmacm.ConnParam {
	p := cm.DefaultConnParam()
	p.ResponderResources, p.InitiatorDepth = 1, 1
	return &p
}

func newPing(t *testing.T, id *cm.ID) *ping {
	t.Helper()
	_, err := id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	p := &ping{id: id}
	p.in, err = id.RegMsgs(make([]byte, 16))
	keep(t, p.in, err)
	p.out, err = id.RegMsgs(make([]byte, 16))
	keep(t, p.out, err)
	pd, err := id.PD()
	require.NoError(t, err)
	p.mr, err = pd.RegMR(make([]byte, 128), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_READ|ibv.ACCESS_REMOTE_WRITE)
	keep(t, p.mr, err)
	p.recv(t)
	t.Cleanup(func() { assert.NoError(t, id.QP().Close()) })
	return p
}

func (p *ping) recv(t *testing.T) {
	t.Helper()
	require.NoError(t, p.id.PostRecv(1, p.in.Bytes(), p.in))
}

// next waits for a message.
func (p *ping) next(t *testing.T) (remote uint64, rkey, length uint32) {
	t.Helper()
	wc, err := p.id.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	require.EqualValues(t, 16, wc.ByteLen)
	b := p.in.Bytes()
	remote, rkey, length = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	p.recv(t)
	return remote, rkey, length
}

func (p *ping) done(t *testing.T) {
	t.Helper()
	wc, err := p.id.GetSendComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
}

// sendBuffer sends the buffer's address and waits for the send completion.
func (p *ping) sendBuffer(t *testing.T, length int) {
	t.Helper()
	p.postBuffer(t, length)
	p.done(t)
}

func (p *ping) postBuffer(t *testing.T, length int) {
	t.Helper()
	b := p.out.Bytes()
	binary.BigEndian.PutUint64(b, p.mr.Region().Address)
	binary.BigEndian.PutUint32(b[8:], p.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(length))
	require.NoError(t, p.id.PostSend(2, b, p.out, 0))
}

func TestRPingClientOfC(t *testing.T) { onEnds(t, 1, rpingClient) }

func rpingClient(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.own, 7476)
	ch, err := cm.CreateEventChannelOn(e.backend)
	keep(t, ch, err)
	own, err := ch.CreateID(rdmacm.PS_TCP)
	l := keep(t, own, err)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(0))
	c := run(t, "rping", "-c", "-a", at.Addr().String(), "-p", "7476", "-C", strconv.Itoa(pings), "-v", "-V")
	request := expect(t, ch, rdmacm.CM_EVENT_CONNECT_REQUEST)
	id := keep(t, request.ID, nil)
	p := newPing(t, id)
	require.NoError(t, id.Accept(withTimeout(t), rpingParam(), nil))
	expect(t, ch, rdmacm.CM_EVENT_ESTABLISHED)
	for i := range pings {
		remote, rkey, length := p.next(t)
		got := p.mr.Bytes()[:length]
		require.NoError(t, id.PostRead(3, got, p.mr, 0, remote, rkey))
		p.done(t)
		require.True(t, bytes.HasPrefix(got, fmt.Appendf(nil, "rdma-ping-%d: ", i)), "%q", got)
		p.sendBuffer(t, 0)
		remote, rkey, _ = p.next(t)
		require.NoError(t, id.PostWrite(4, got, p.mr, 0, remote, rkey))
		p.done(t)
		if p.postBuffer(t, 0); i < pings-1 {
			p.done(t)
		}
	}
	expect(t, ch, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, id.Disconnect(withTimeout(t)))
	// the peer exits after the last message, possibly before its device has acknowledged it; the message is then
	// flushed
	_, err = id.GetSendComp(withTimeout(t))
	require.NoError(t, err)
	assert.Contains(t, c.ended(t), fmt.Sprintf("ping data: rdma-ping-%d: ", pings-1))
}

func TestRPingServerOfC(t *testing.T) { onEnds(t, 1, rpingServer) }

func rpingServer(t *testing.T, e ends) {
	at := netip.AddrPortFrom(e.theirs, 7477)
	s := run(t, "rping", "-s", "-a", at.Addr().String(), "-p", "7477", "-C", strconv.Itoa(pings), "-v")
	ch, err := cm.CreateEventChannelOn(e.backend)
	keep(t, ch, err)
	var p *ping
	retry(t, func() (*cm.ID, error) {
		id, err := ch.CreateID(rdmacm.PS_TCP)
		require.NoError(t, err)
		require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, at, time.Second))
		expect(t, ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
		require.NoError(t, id.ResolveRoute(withTimeout(t), time.Second))
		expect(t, ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
		keep(t, id, nil)
		p = newPing(t, id)
		require.NoError(t, id.Connect(withTimeout(t), rpingParam(), nil))
		answer, err := ch.Event(withTimeout(t))
		require.NoError(t, err)
		if answer.Type != rdmacm.CM_EVENT_ESTABLISHED {
			return nil, fmt.Errorf("%v", answer)
		}
		return id, nil
	})
	const size = 64 // as in rping, which prints up to the first zero byte
	for i := range pings {
		text := fmt.Appendf(nil, "rdma-ping-%d: of Go's", i)
		clear(p.mr.Bytes())
		copy(p.mr.Bytes(), text)
		p.sendBuffer(t, size)
		p.next(t)
		clear(p.mr.Bytes())
		p.sendBuffer(t, size)
		p.next(t)
		require.True(t, bytes.HasPrefix(p.mr.Bytes(), text), "%q", p.mr.Bytes())
	}
	require.NoError(t, p.id.Disconnect(withTimeout(t)))
	expect(t, ch, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Contains(t, s.ended(t), fmt.Sprintf("server ping data: rdma-ping-%d: of Go's", pings-1))
}

// expect waits for an event and checks its type.
func expect(t *testing.T, ch *cm.EventChannel, want rdmacm.CMEventType) cm.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := ch.Event(ctx)
	require.NoError(t, err, "waiting for %v", want)
	require.Equal(t, want, e.Type, "%v", e)
	return e
}
