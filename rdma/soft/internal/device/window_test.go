// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

func (s *testPair) window(kind ibv.MWType) *ibv.MW {
	w, err := verbs.AllocMW(s.pd[1], kind)
	require.NoError(s.t, err)
	return w
}

// write writes 8 bytes to the peer with a key. It uses a new pair, because a failure moves the pair to ERR.
func (s *testPair) write(p *pair, offset int, key uint32) ibv.WCStatus {
	wr := s.send(1, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 8))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: s.bufB.at(offset), RKey: key}
	require.NoError(s.t, s.post(p.a, wr))
	return s.poll(p.aSend).Status
}

func TestWindowsOfType1(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	s.bufB = s.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND)
	w := s.window(ibv.MW_TYPE_1)
	unbound := w.RKey
	bind := func(offset, length int) error {
		b := &ibv.MWBind{WRID: 9, SendFlags: ibv.SEND_SIGNALED, BindInfo: ibv.MWBindInfo{
			MR: ibv.PtrTo(s.bufB.mr), Addr: s.bufB.at(offset), Length: uint64(length),
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
		}}
		if err := verbs.BindMW(s.p.b, w, b); err != nil {
			return err
		}
		wc := s.poll(s.p.bSend)
		assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
		assert.Equal(t, ibv.WC_BIND_MW, wc.Opcode)
		return nil
	}
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.pair(ibv.QPT_RC), 0, unbound))
	require.NoError(t, bind(100, 200))
	assert.NotEqual(t, unbound, w.RKey)
	assert.Equal(t, ibv.WC_SUCCESS, s.write(s.p, 292, w.RKey))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.pair(ibv.QPT_RC), 99, w.RKey))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.pair(ibv.QPT_RC), 293, w.RKey))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.pair(ibv.QPT_RC), 100, unbound))
	assert.ErrorIs(t, verbs.DeregMR(s.bufB.mr), syscall.EBUSY)
	require.NoError(t, bind(0, 0))
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.pair(ibv.QPT_RC), 100, w.RKey))
	require.NoError(t, verbs.DeallocMW(w))
}

// TestQueuedBinds: a window of type 1 has the key of the last posted bind, even if an earlier bind is executed later.
func TestQueuedBinds(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	s.bufB = s.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND)
	w := s.window(ibv.MW_TYPE_1)
	var keys []uint32
	for id := range uint64(3) {
		require.NoError(t, s.post(s.p.b, s.send(id, ibv.WR_SEND))) // waits for a receive
		require.NoError(t, verbs.BindMW(s.p.b, w, &ibv.MWBind{BindInfo: ibv.MWBindInfo{
			MR: ibv.PtrTo(s.bufB.mr), Addr: s.bufB.at(0), Length: 64, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
		}}))
		keys = append(keys, w.RKey)
		if id == 1 {
			s.recv(s.p.a, 1)
			s.fabric.Advance(10 * time.Microsecond) // the first bind is executed
			s.poll(s.p.bSend)
			assert.Equal(t, ibv.WC_SUCCESS, s.write(s.p, 0, keys[0]))
		}
		assert.Equal(t, keys[id], w.RKey)
	}
	assert.Equal(t, []uint32{keys[0], verbs.IncRKey(keys[0]), verbs.IncRKey(verbs.IncRKey(keys[0]))}, keys)
	require.NoError(t, verbs.DeallocMW(w))
}

func TestWindowsOfType2(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	s.bufB = s.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND)
	w := s.window(ibv.MW_TYPE_2)
	bind := func(p *pair, key uint32) ibv.WCStatus {
		wr := s.send(3, ibv.WR_BIND_MW)
		*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(w), RKey: key, BindInfo: ibv.MWBindInfo{
			MR: ibv.PtrTo(s.bufB.mr), Addr: s.bufB.at(0), Length: 64,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_ZERO_BASED,
		}}
		require.NoError(t, s.post(p.b, wr))
		return s.poll(p.bSend).Status
	}
	key := verbs.IncRKey(w.RKey)
	require.Equal(t, ibv.WC_SUCCESS, bind(s.p, key))
	assert.NotEqual(t, key, w.RKey, "the program updates the key, as with C's providers")
	assert.Equal(t, ibv.WC_MW_BIND_ERR, bind(s.pair(ibv.QPT_RC), verbs.IncRKey(key)), "the window is already bound")
	// the regions without a bound window
	for p, want := range map[*pair]ibv.WCStatus{s.p: ibv.WC_SUCCESS, s.pair(ibv.QPT_RC): ibv.WC_REM_ACCESS_ERR} {
		wr := s.send(4, ibv.WR_RDMA_WRITE, s.bufA.sge(0, 8))
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: 56, RKey: key} // zero-based addresses
		require.NoError(t, s.post(p.a, wr))
		assert.Equal(t, want, s.poll(p.aSend).Status)
	}
	assert.ErrorIs(t, verbs.DestroyQP(s.p.b), syscall.EBUSY)

	// Another queue pair, or the peer of another one, cannot invalidate the window.
	other := s.pair(ibv.QPT_RC)
	s.recv(other.b, 8)
	foreign := s.send(5, ibv.WR_SEND_WITH_INV)
	*foreign.InvalidateRKey() = key
	require.NoError(t, s.post(other.a, foreign))
	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, s.poll(other.aSend).Status)
	other = s.pair(ibv.QPT_RC)
	foreign = s.send(6, ibv.WR_LOCAL_INV)
	*foreign.InvalidateRKey() = key
	require.NoError(t, s.post(other.b, foreign))
	assert.Equal(t, ibv.WC_LOC_QP_OP_ERR, s.poll(other.bSend).Status)

	// The peer invalidates the window, and the completion of the receive reports it.
	s.recv(s.p.b, 7)
	inv := s.send(5, ibv.WR_SEND_WITH_INV)
	*inv.InvalidateRKey() = key
	require.NoError(t, s.post(s.p.a, inv))
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	wc := s.poll(s.p.bRecv)
	assert.Equal(t, ibv.WC_WITH_INV, wc.WCFlags)
	assert.Equal(t, key, *wc.InvalidatedRKey())

	// The owner invalidates it after it is bound again.
	key = verbs.IncRKey(key)
	require.Equal(t, ibv.WC_SUCCESS, bind(s.p, key))
	local := func() ibv.WCStatus {
		wr := s.send(6, ibv.WR_LOCAL_INV)
		*wr.InvalidateRKey() = key
		require.NoError(t, s.post(s.p.b, wr))
		return s.poll(s.p.bSend).Status
	}
	require.Equal(t, ibv.WC_SUCCESS, local())
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, s.write(s.pair(ibv.QPT_RC), 0, key))
	assert.Equal(t, ibv.WC_LOC_QP_OP_ERR, local(), "the window is not bound")
	require.NoError(t, verbs.DeallocMW(w))
}

// TestWindowOfZeroBasedRegion: binding a window to a zero-based region fails, because the window's addresses would be
// ambiguous.
func TestWindowOfZeroBasedRegion(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	s.bufB = s.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND|ibv.ACCESS_ZERO_BASED)
	w := s.window(ibv.MW_TYPE_2)
	wr := s.send(3, ibv.WR_BIND_MW)
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(w), RKey: verbs.IncRKey(w.RKey), BindInfo: ibv.MWBindInfo{
		MR: ibv.PtrTo(s.bufB.mr), Addr: 0, Length: 64, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
	}}
	require.NoError(t, s.post(s.p.b, wr))
	assert.Equal(t, ibv.WC_MW_BIND_ERR, s.poll(s.p.bSend).Status)
	require.NoError(t, verbs.DeallocMW(w))
}
