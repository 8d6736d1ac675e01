// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestPeerInC runs Go and a C program in both roles of a script that uses every helper of rdma_verbs.h, and checks that
// Go observes the same completions and data as C in each role.
func TestPeerInC(t *testing.T) {
	inGuest(t, "the other end is a program in C")
	at := address(t, 0).Addr().String()
	if _, err := exec.LookPath("cmpeer"); err != nil {
		t.Skip("the C peer is not in the guest: run vmtest -with ./conformance/vm/cm/peer/cmpeer.c")
	}
	yOfC := run(t, "cmpeer", "y", at, "7500")
	xOfGo := (&script{t: t, at: at, port: 7500}).x()
	wanted := xOfGo
	output := yOfC.ended(t)
	yInC := strings.TrimPrefix(output, "ready\n")
	ready := make(chan struct{})
	var xInC *program
	go func() {
		<-ready
		xInC = run(t, "cmpeer", "x", at, "7510")
		ready <- struct{}{}
	}()
	yOfGo := (&script{t: t, at: at, port: 7510}).y(func() { ready <- struct{}{}; <-ready })
	assert.Equal(t, xInC.ended(t), wanted, "the active side")
	assert.Equal(t, yInC, yOfGo, "the passive side")
	assert.Equal(t, roles, wanted+"\n"+yOfGo)
	assert.Contains(t, wanted, "data rrrrrrrr\n")
	assert.Contains(t, yOfGo, "data two pieces\n")
	assert.Contains(t, yOfGo, "data written.and in pieces\n")
	assert.Contains(t, yOfGo, "data datagram\n")
}

// roles holds the recorded observations of the script: of the active side, and then of the passive side.
//
//go:embed testdata/roles.txt
var roles string

// TestPeerInGo runs Go in both roles on any device, and checks that it observes the same as C on Soft-RoCE.
func TestPeerInGo(t *testing.T) {
	at := address(t, 0).Addr().String()
	ready, x := make(chan struct{}), make(chan string, 1)
	go func() {
		<-ready
		x <- (&script{t: t, at: at, port: 7512}).x()
	}()
	y := (&script{t: t, at: at, port: 7512}).y(func() { close(ready) })
	assert.Equal(t, roles, <-x+"\n"+y)
}

// script is one role and its observations.
type script struct {
	t                        *testing.T
	at                       string
	port                     int
	out                      strings.Builder
	id                       *cm.ID
	msgs, readable, writable *rdma.MR
}

func (s *script) must(err error) {
	s.t.Helper()
	require.NoError(s.t, err)
}

func (s *script) completion(queue string, wc ibv.WC, err error) ibv.WC {
	s.t.Helper()
	s.must(err)
	fmt.Fprintf(&s.out, "%s: context %d status %d opcode %d", queue, wc.WRID, wc.Status, wc.Opcode)
	if wc.Opcode&ibv.WC_RECV != 0 {
		fmt.Fprintf(&s.out, " bytes %d", wc.ByteLen)
	}
	s.out.WriteByte('\n')
	return wc
}

func (s *script) sent(id *cm.ID) {
	s.t.Helper()
	wc, err := id.GetSendComp(withTimeout(s.t))
	s.completion("send", wc, err)
}

func (s *script) received(id *cm.ID, at []byte) {
	s.t.Helper()
	wc, err := id.GetRecvComp(withTimeout(s.t))
	if wc = s.completion("recv", wc, err); at != nil {
		s.data("%s", at[:wc.ByteLen])
	}
}

func (s *script) data(format string, args ...any) { fmt.Fprintf(&s.out, "data "+format+"\n", args...) }

var peerAttr = ibv.QPInitAttr{Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2,
	MaxInlineData: 64}, SQSigAll: 1}

func (s *script) endpoint(port int, flags rdmacm.AddrInfoFlags, ps rdmacm.PortSpace) *cm.ID {
	s.t.Helper()
	info, err := getAddrInfo(withTimeout(s.t), s.at, strconv.Itoa(port), cm.Hints{Flags: flags, PortSpace: ps})
	s.must(err)
	defer info.Close()
	id, err := cm.CreateEP(withTimeout(s.t), info, nil, &peerAttr, rdma.QueueOptions{})
	s.must(err)
	if flags&rdmacm.RAI_PASSIVE != 0 {
		s.must(id.Listen(0))
	}
	return id
}

func (s *script) regions() {
	s.t.Helper()
	fill := func(c byte) []byte { return []byte(strings.Repeat(string(c), 256)) }
	var err error
	s.msgs, err = s.id.RegMsgs(make([]byte, 256))
	s.must(err)
	s.readable, err = s.id.RegRead(fill('r'))
	s.must(err)
	s.writable, err = s.id.RegWrite(fill('.'))
	s.must(err)
}

func (s *script) end() string {
	s.t.Helper()
	s.must(s.id.Disconnect(withTimeout(s.t)))
	s.must(s.id.QP().Close())
	s.must(s.msgs.Close())
	s.must(s.readable.Close())
	s.must(s.writable.Close())
	s.must(s.id.Close())
	return s.out.String()
}

func (s *script) x() string {
	t := s.t
	var msgs []byte
	s.id = retry(t, func() (*cm.ID, error) {
		s.id = s.endpoint(s.port, 0, rdmacm.PS_TCP)
		s.regions()
		msgs = s.msgs.Bytes()
		s.must(s.id.PostRecv(1, msgs[:24], s.msgs))
		err := s.id.Connect(withTimeout(t), nil, nil)
		if err != nil {
			s.must(s.id.QP().Close())
			for _, mr := range []*rdma.MR{s.msgs, s.readable, s.writable} {
				s.must(mr.Close())
			}
			s.must(s.id.Close())
		}
		return s.id, err
	})
	s.must(s.id.PostSend(2, []byte("hello"), nil, ibv.SEND_INLINE))
	s.sent(s.id)
	s.received(s.id, nil)
	readAt, writeAt := binary.BigEndian.Uint64(msgs), binary.BigEndian.Uint64(msgs[8:])
	readKey, writeKey := binary.BigEndian.Uint32(msgs[16:]), binary.BigEndian.Uint32(msgs[20:])

	copy(msgs, "two pieces")
	s.must(s.id.PostSendv(3, []ibv.SGE{s.msgs.SGE(0, 4), s.msgs.SGE(4, 6)}, 0))
	s.sent(s.id)
	s.must(s.id.PostRead(4, msgs[:8], s.msgs, 0, readAt, readKey))
	s.sent(s.id)
	s.data("%s", msgs[:8])
	s.must(s.id.PostReadv(5, []ibv.SGE{s.msgs.SGE(20, 3), s.msgs.SGE(30, 3)}, 0, readAt, readKey))
	s.sent(s.id)
	s.data("%s %s", msgs[20:23], msgs[30:33])
	copy(msgs, "written")
	s.must(s.id.PostWrite(6, msgs[:7], s.msgs, 0, writeAt, writeKey))
	s.sent(s.id)
	copy(msgs[20:], "and in ")
	copy(msgs[30:], "pieces")
	s.must(s.id.PostWritev(7, []ibv.SGE{s.msgs.SGE(20, 7), s.msgs.SGE(30, 6)}, 0, writeAt+8, writeKey))
	s.sent(s.id)
	s.must(s.id.PostSend(8, msgs[:0], s.msgs, 0))
	s.sent(s.id)

	ud := s.endpoint(s.port+1, 0, rdmacm.PS_UDP)
	e, err := ud.ConnectEvent(withTimeout(t), &rdmacm.ConnParam{}, nil)
	s.must(err)
	pd, err := ud.PD()
	s.must(err)
	ah, err := pd.CreateAH(&e.UD.AHAttr)
	s.must(err)
	s.must(ud.PostUDSend(9, []byte("datagram"), nil, ibv.SEND_INLINE, ah, e.UD.QPNum))
	s.sent(ud)
	s.must(ah.Close())
	s.must(ud.Close())
	return s.end()
}

func (s *script) y(ready func()) string {
	t := s.t
	listener := s.endpoint(s.port, rdmacm.RAI_PASSIVE, rdmacm.PS_TCP)
	datagrams := s.endpoint(s.port+1, rdmacm.RAI_PASSIVE, rdmacm.PS_UDP)
	ready()
	var err error
	s.id, _, err = listener.GetRequest(withTimeout(t))
	s.must(err)
	s.regions()
	msgs := s.msgs.Bytes()
	s.must(s.id.PostRecv(1, msgs[:16], s.msgs))
	s.must(s.id.PostRecvv(2, []ibv.SGE{s.msgs.SGE(16, 4), s.msgs.SGE(20, 60)}))
	s.must(s.id.PostRecv(3, msgs[100:116], s.msgs))
	s.must(s.id.Accept(withTimeout(t), nil, nil))
	s.received(s.id, msgs)

	info := binary.BigEndian.AppendUint64(nil, s.readable.Region().Address)
	info = binary.BigEndian.AppendUint64(info, s.writable.Region().Address)
	info = binary.BigEndian.AppendUint32(info, s.readable.RKey())
	info = binary.BigEndian.AppendUint32(info, s.writable.RKey())
	s.must(s.id.PostSend(4, info, nil, ibv.SEND_INLINE))
	s.sent(s.id)
	s.received(s.id, msgs[16:])
	s.received(s.id, nil)
	s.data("%s", s.writable.Bytes()[:21])

	ud, _, err := datagrams.GetRequest(withTimeout(t))
	s.must(err)
	mr, err := ud.RegMsgs(msgs)
	s.must(err)
	s.must(ud.PostRecv(5, msgs, mr))
	s.must(ud.Accept(withTimeout(t), &rdmacm.ConnParam{QPNum: ud.QP().Num()}, nil))
	s.received(ud, nil)
	s.data("%s", msgs[40:48])
	s.must(ud.QP().Close())
	s.must(mr.Close())
	for _, id := range []*cm.ID{ud, datagrams, listener} {
		s.must(id.Close())
	}
	return s.end()
}
