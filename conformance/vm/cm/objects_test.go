// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestSharedReceiveQueue checks that the queue pair of an ID uses the ID's shared receive queue.
func TestSharedReceiveQueue(t *testing.T) {
	l := listen(t, 7490)
	served := make(chan bool)
	go func() {
		defer close(served)
		id, _, err := l.GetRequest(withTimeout(t))
		if !assert.NoError(t, err) {
			return
		}
		defer id.Close()
		_, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
		assert.NoError(t, err)
		assert.NoError(t, id.Accept(withTimeout(t), nil, nil))
		assert.NoError(t, id.PostSend(1, []byte("shared"), nil, ibv.SEND_INLINE))
		_, err = id.GetSendComp(withTimeout(t))
		assert.NoError(t, err)
		_, err = id.Event(withTimeout(t))
		assert.NoError(t, err)
	}()
	id, err := createID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, address(t, 7490), time.Second))
	require.NoError(t, id.ResolveRoute(withTimeout(t), time.Second))
	srq, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	qp, err := id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	assert.Same(t, srq, qp.SRQ())
	mr, err := id.RegMsgs(make([]byte, 32))
	require.NoError(t, err)
	require.NoError(t, id.PostRecv(9, mr.Bytes(), mr))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	wc, err := id.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	assert.EqualValues(t, 9, wc.WRID)
	assert.Equal(t, "shared", string(mr.Bytes()[:wc.ByteLen]))
	require.NoError(t, mr.Close())
	require.NoError(t, id.Close())
	<-served
}

// TestLastIDKeepsDevice checks that objects created from an ID's device must be closed before the last ID of that
// device.
func TestLastIDKeepsDevice(t *testing.T) {
	var ids [2]*cm.ID
	at := address(t, 0)
	for i := range ids {
		id, err := createID(rdmacm.PS_TCP)
		ids[i] = keep(t, id, err)
		require.NoError(t, id.Bind(at))
		_, err = id.PD()
		require.NoError(t, err)
	}
	mr, err := ids[0].RegMsgs(make([]byte, 32))
	require.NoError(t, err)
	require.NoError(t, ids[0].Close())
	err = ids[1].Close()
	assert.ErrorIs(t, err, rdma.ErrInUse)
	assert.ErrorContains(t, err, "MR ")
	require.NoError(t, mr.Close())
	require.NoError(t, ids[1].Close())
}

func TestDevices(t *testing.T) {
	testbed.Kernel(t)
	l, err := getDevices()
	require.NoError(t, err)
	if testbed.Kernel(t) != testbed.Soft { // the fabric has two devices
		require.Len(t, l.Devices, 1)
	}
	assert.Equal(t, os.Getenv(wire.EnvDevice), l.Devices[0].Name())
	_, err = l.Devices[0].Query()
	assert.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
}
