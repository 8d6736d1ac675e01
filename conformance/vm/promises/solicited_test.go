// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// testSolicited checks that a completion queue armed for solicited completions gets an event only for a request with
// the flag.
func testSolicited(t *testing.T, opcode ibv.WROpcode) {
	s := newTestPair(t, ibv.QPT_RC)
	channel, err := verbs.CreateCompChannel(s.Context)
	require.NoError(t, err)
	s.Defer(func() { s.Check(verbs.DestroyCompChannel(channel)) })
	require.NoError(t, syscall.SetNonblock(int(channel.FD), true))
	cq, err := verbs.CreateCQ(s.Context, 16, 0, channel, 0)
	require.NoError(t, err)
	s.Defer(func() { s.Check(verbs.DestroyCQ(cq)) })
	peer := s.QP(ibv.QPT_RC, s.BSend, cq)
	from := s.QP(ibv.QPT_RC, s.ASend, s.ARecv)
	s.Connect(from, peer)
	require.NoError(t, verbs.ReqNotifyCQ(cq, 1))
	event := func() error {
		where, context := &testbed.Records[ibv.Ptr[ibv.CQ]](s.Testbed, 1)[0], &testbed.Records[uintptr](s.Testbed, 1)[0]
		return verbs.GetCQEvent(channel, where, context)
	}
	for _, flag := range []ibv.SendFlags{0, ibv.SEND_SOLICITED} {
		s.Recv(peer, 1, s.bufB.SGE(0, 64))
		l := s.remote(opcode, 1024)
		l.WRs[0].SendFlags |= flag
		_, err = l.Post(from)
		require.NoError(t, err)
		s.sent(1, ibv.WC_SUCCESS)
		require.Equal(t, ibv.WC_SUCCESS, s.Completion(cq).Status)
		if flag == 0 {
			assert.ErrorIs(t, event(), syscall.EAGAIN, "%v without the flag raises no event", opcode)
			continue
		}
		require.Eventually(t, func() bool { return event() == nil }, 10*time.Second, time.Millisecond, "%v", opcode)
		require.NoError(t, verbs.AckCQEvents(cq, 1))
	}
}
