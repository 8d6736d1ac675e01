// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftFaults: messages of the connection manager are lost, delayed and repeated. Each side still gets each event
// once, in order, except that RTU and DREQ may be reordered on the passive side.
func TestSoftFaults(t *testing.T) {
	for seed := range uint64(150) {
		for name, faults := range map[string]soft.Faults{
			"drop": {Drop: 0.4}, "duplicate": {Duplicate: 0.8}, "delay": {Delay: 0.5, Late: 10 * time.Second},
			"all": {Drop: 0.3, Duplicate: 0.4, Delay: 0.4, Late: 3 * time.Second},
		} {
			faults.Seed = seed
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				s := newTestbed(t, rdmacm.PS_TCP)
				s.listen(1)
				id := s.withQP(s.resolved())
				s.f.SetFaults(faults)
				require.NoError(t, id.Connect(timeout(t), nil, []byte("hello")))
				other := s.request()
				require.NoError(t, other.Accept(timeout(t), nil, []byte("welcome")))
				s.success(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
				s.success(s.passiveChannel, rdmacm.CM_EVENT_ESTABLISHED)
				require.NoError(t, id.Disconnect(timeout(t)))
				s.success(s.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
				require.NoError(t, other.Disconnect(timeout(t)))
				s.success(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED)
				s.success(s.passiveChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
				s.success(s.activeChannel, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
			})
			if t.Failed() {
				return
			}
		}
	}
}

// TestSoftLookupFaults is TestSoftFaults for datagrams.
func TestSoftLookupFaults(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newTestbed(t, rdmacm.PS_UDP)
			s.listen(1)
			id := s.withQP(s.resolved())
			s.f.SetFaults(soft.Faults{Seed: seed, Drop: 0.3, Duplicate: 0.4, Delay: 0.4, Late: 3 * time.Second})
			require.NoError(t, id.Connect(timeout(t), nil, nil))
			other := s.request()
			require.NoError(t, other.Accept(timeout(t), &rdmacm.ConnParam{QPNum: other.QP().Num()}, []byte("here")))
			e := s.event(s.activeChannel, rdmacm.CM_EVENT_ESTABLISHED)
			assert.Equal(t, other.QP().Num(), e.UD.QPNum)
			assert.Equal(t, append([]byte("here"), make([]byte, 132)...), e.PrivateData)
		})
	}
}

// TestSoftUnresponsiveProgram: with a real clock, an unresponsive program times out after the time of all
// retransmissions together.
func TestSoftUnresponsiveProgram(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{CMResponse: 5 * time.Millisecond})
	s.listen(1)
	s.requested()
	start := time.Now()
	other := s.request()
	s.event(s.activeChannel, rdmacm.CM_EVENT_UNREACHABLE)
	assert.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
	require.NoError(t, other.Close())

	// this program answers within 17 timeouts
	s = newTestbedOn(t, rdmacm.PS_TCP, soft.Options{CMResponse: 100 * time.Millisecond})
	s.listen(1)
	s.connect()
	require.NoError(t, s.client.Disconnect(timeout(t)))
	s.event(s.passiveChannel, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Negative(t, s.event(s.activeChannel, rdmacm.CM_EVENT_DISCONNECTED).Status)
}
