package rxe

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

func TestQueries(t *testing.T) {
	r := rig.Open(t)
	attr := new(ibv.DeviceAttr)
	require.NoError(t, verbs.QueryDevice(r.Context, attr))
	assert.EqualValues(t, 1, attr.PhysPortCnt)
	assert.Equal(t, ibv.ATOMIC_HCA, attr.AtomicCap)
	assert.Greater(t, attr.MaxQP, int32(100))
	more := new(ibv.DeviceAttrEx)
	require.NoError(t, verbs.QueryDeviceEx(r.Context, nil, more))
	assert.Equal(t, *attr, more.OrigAttr)
	assert.ErrorIs(t, verbs.QueryDeviceEx(r.Context, &ibv.QueryDeviceExInput{CompMask: 1}, more), syscall.EINVAL)

	assert.Equal(t, ibv.PORT_ACTIVE, r.Port.State)
	assert.Equal(t, ibv.LINK_LAYER_ETHERNET, ibv.LinkLayer(r.Port.LinkLayer))
	assert.ErrorIs(t, verbs.QueryPort(r.Context, 9, new(ibv.PortAttr)), syscall.EINVAL)

	gid := new(ibv.GID)
	require.NoError(t, verbs.QueryGID(r.Context, rig.PortNum, int(r.Index), gid))
	assert.Equal(t, r.GID, *gid)
	assert.Error(t, verbs.QueryGID(r.Context, rig.PortNum, 1<<20, gid))
	entry := new(ibv.GIDEntry)
	require.NoError(t, verbs.QueryGIDEx(r.Context, rig.PortNum, uint32(r.Index), entry, 0))
	assert.Equal(t, ibv.GID_TYPE_ROCE_V2, entry.GIDType)
	assert.ErrorIs(t, verbs.QueryGIDEx(r.Context, rig.PortNum, 1<<20, entry, 0), syscall.EINVAL)
	pkey := new(ibv.BE16)
	require.NoError(t, verbs.QueryPKey(r.Context, rig.PortNum, 0, pkey))
	assert.EqualValues(t, 0xffff, pkey.Host())
	index, err := verbs.GetPKeyIndex(r.Context, rig.PortNum, *pkey)
	require.NoError(t, err)
	assert.Zero(t, index)
}

func TestMemoryRegions(t *testing.T) {
	r := rig.Open(t)
	memory := r.Memory(8192)
	mr, err := verbs.RegMR(r.PD, address(&memory[0]), 4096, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	require.NoError(t, err)
	assert.EqualValues(t, 4096, mr.Length)
	assert.NotZero(t, mr.LKey)
	at, err := verbs.RegMRIOVA(r.PD, address(&memory[4096]), 4096, 0x10000, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_RELAXED_ORDERING)
	require.NoError(t, err)
	_, err = verbs.RegMR(r.PD, address(&memory[0]), 4096, ibv.ACCESS_REMOTE_WRITE)
	assert.ErrorIs(t, err, syscall.EINVAL, "remote write without local write")
	_, err = verbs.RegMR(r.PD, 0x10, 4096, ibv.ACCESS_LOCAL_WRITE)
	assert.Error(t, err, "memory that is not there")
	code, err := verbs.ReregMR(mr, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP, "rxe's provider lacks it, though newer kernels have it")
	assert.Equal(t, ibv.REREG_MR_ERR_CMD, code)
	require.NoError(t, verbs.DeregMR(at))
	require.NoError(t, verbs.DeregMR(mr))
}

func TestCompletionQueues(t *testing.T) {
	r := rig.Open(t)
	channel, err := verbs.CreateCompChannel(r.Context)
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(r.Context, 10, 0xabcd, channel, 0)
	require.NoError(t, err)
	require.NoError(t, verbs.ResizeCQ(cq, 100))
	assert.GreaterOrEqual(t, cq.CQE, int32(100))
	_, err = verbs.CreateCQ(r.Context, 1<<30, 0, nil, 0)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorIs(t, verbs.ResizeCQ(cq, 1<<30), syscall.EINVAL)

	// An event comes for the next completion, once it was asked for; a channel or queue in use cannot be destroyed.
	p := &rig.Pair{ASend: cq, ARecv: r.CQ(4), BSend: r.CQ(4), BRecv: r.CQ(4)}
	t.Run("event", func(t *testing.T) {
		own := r.For(t)
		p.A, p.B = own.QP(ibv.QPT_RC, p.ASend, p.ARecv), own.QP(ibv.QPT_RC, p.BSend, p.BRecv)
		own.Connect(p.A, p.B)
		require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
		l := own.Sends(1)
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.WR_SEND, ibv.SEND_SIGNALED, 0
		buffer := own.Buffer(64, ibv.ACCESS_LOCAL_WRITE)
		own.Recv(p.B, 1, buffer.SGE(0, 64))
		_, err := l.Post(p.A)
		require.NoError(t, err)
		got, context := &rig.Records[ibv.Ptr[ibv.CQ]](own, 1)[0], &rig.Records[uintptr](own, 1)[0]
		require.NoError(t, verbs.GetCQEvent(channel, got, context))
		assert.Equal(t, ibv.PtrTo(cq), *got)
		assert.EqualValues(t, 0xabcd, *context)
		require.NoError(t, verbs.AckCQEvents(cq, 1))
		assert.Equal(t, ibv.WC_SUCCESS, own.Completion(cq).Status)
		assert.ErrorIs(t, verbs.DestroyCQ(cq), syscall.EBUSY, "queue pairs use it")
	})
	assert.ErrorIs(t, verbs.DestroyCompChannel(channel), syscall.EBUSY, "a queue uses it")
	require.NoError(t, verbs.DestroyCQ(cq))
	require.NoError(t, verbs.DestroyCompChannel(channel))
}

// TestSharedReceives: two queue pairs share receives, and an event comes when there are fewer than the limit.
func TestSharedReceives(t *testing.T) {
	r := rig.Open(t)
	srq, err := verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	_, err = verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 1 << 30, MaxSGE: 1}})
	assert.ErrorIs(t, err, syscall.EINVAL)
	attr := new(ibv.SRQAttr)
	require.NoError(t, verbs.QuerySRQ(srq, attr))
	assert.GreaterOrEqual(t, attr.MaxWR, uint32(8))
	buffer := r.Buffer(4096, ibv.ACCESS_LOCAL_WRITE)
	wrs, sges, bad := rig.Records[ibv.RecvWR](r, 4), rig.Records[ibv.SGE](r, 4), &rig.Records[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
	for i := range wrs {
		sges[i] = buffer.SGE(i*64, 64)
		wrs[i] = ibv.RecvWR{WRID: uint64(i), SGList: ibv.PtrTo(&sges[i]), NumSGE: 1}
		if i+1 < len(wrs) {
			wrs[i].Next = ibv.PtrTo(&wrs[i+1])
		}
	}
	require.NoError(t, verbs.PostSRQRecv(srq, &wrs[0], bad))
	require.NoError(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 4}, ibv.SRQ_LIMIT))
	assert.ErrorIs(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 1 << 20}, ibv.SRQ_LIMIT), syscall.EINVAL)

	send, recv := r.CQ(16), r.CQ(16)
	from := r.QP(ibv.QPT_RC, send, send)
	to, err := verbs.CreateQP(r.PD, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(recv), RecvCQ: ibv.PtrTo(recv), SRQ: ibv.PtrTo(srq), Cap: rig.Caps})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(to)) })
	r.Connect(from, to)
	l := r.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND, ibv.SEND_SIGNALED, buffer.SGE(2048, 32)
	_, err = l.Post(from)
	require.NoError(t, err)
	assert.Equal(t, ibv.WC_SUCCESS, r.Completion(send).Status)
	wc := r.Completion(recv)
	assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
	assert.EqualValues(t, 32, wc.ByteLen)
	event := &rig.Records[ibv.AsyncEvent](r, 1)[0]
	require.NoError(t, verbs.GetAsyncEvent(r.Context, event))
	assert.Equal(t, ibv.EVENT_SRQ_LIMIT_REACHED, event.EventType)
	assert.Equal(t, ibv.PtrTo(srq), *event.Element.SRQ())
	require.NoError(t, verbs.AckAsyncEvent(event))
	assert.Error(t, verbs.DestroySRQ(srq), "a queue pair uses it")
}

// TestMulticast: a queue pair of type UD enters a group and leaves it.
func TestMulticast(t *testing.T) {
	r := rig.Open(t)
	cq := r.CQ(16)
	to := r.QP(ibv.QPT_UD, cq, cq)
	r.Bring(to, ibv.QPS_RTS)
	group := &rig.Records[ibv.GID](r, 1)[0]
	*group.Raw() = [16]byte{0xff, 0x0e, 10: 0xff, 11: 0xff, 12: 239, 13: 7, 14: 7, 15: 7} // of IPv4 239.7.7.7
	require.NoError(t, verbs.AttachMcast(to, group, 0))
	assert.ErrorIs(t, verbs.AttachMcast(r.QP(ibv.QPT_RC, cq, cq), group, 0), syscall.EINVAL, "RC has no multicast")
	require.NoError(t, verbs.DetachMcast(to, group, 0))
	assert.ErrorIs(t, verbs.DetachMcast(to, group, 0), syscall.EINVAL, "it is not in the group any more")
}

// TestWindows: a window of each type is allocated; what a bound one lets in is written through its key.
func TestWindows(t *testing.T) {
	r := rig.Open(t)
	p := r.Pair(ibv.QPT_RC)
	access := r.Access | ibv.ACCESS_MW_BIND
	here, there := r.Buffer(bufferLen, access), r.Buffer(bufferLen, access)
	write := func(key uint32) ibv.WCStatus {
		l := r.Sends(1)
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_RDMA_WRITE, ibv.SEND_SIGNALED, here.SGE(0, moved)
		*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: there.Address(0), RKey: key}
		_, err := l.Post(p.A)
		require.NoError(t, err)
		return r.Completion(p.ASend).Status
	}
	copy(here.Bytes, pattern())
	one, err := verbs.AllocMW(r.PD, ibv.MW_TYPE_1)
	require.NoError(t, err)
	require.NoError(t, verbs.BindMW(p.B, one, &ibv.MWBind{WRID: 9, SendFlags: ibv.SEND_SIGNALED, BindInfo: ibv.MWBindInfo{
		MR: ibv.PtrTo(there.MR), Addr: there.Address(0), Length: bufferLen, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
	}}))
	assert.Equal(t, ibv.WC_SUCCESS, r.Completion(p.BSend).Status)
	assert.Equal(t, ibv.WC_SUCCESS, write(one.RKey))
	assert.Equal(t, pattern(), there.Bytes[:moved])
	require.NoError(t, verbs.DeallocMW(one))

	clear(there.Bytes)
	key := r.Bound(p.B, p.BSend, there)
	assert.Equal(t, ibv.WC_SUCCESS, write(key))
	assert.Equal(t, pattern(), there.Bytes[:moved])
	assert.NotEqual(t, ibv.WC_SUCCESS, write(key^0xff), "a key that no window has")
	_, err = verbs.AllocMW(r.PD, 7)
	assert.Error(t, err, "no such type")
}

func TestHandles(t *testing.T) {
	r := rig.Open(t)
	r.Handle()
	attr := r.AH()
	attr.GRH.SGIDIndex = 200
	_, err := verbs.CreateAH(r.PD, &attr)
	assert.Error(t, err, "no such GID")
	attr = r.AH()
	attr.PortNum = 9
	_, err = verbs.CreateAH(r.PD, &attr)
	assert.Error(t, err, "no such port")
}

// TestBusy: what is in use cannot be freed, and stays usable.
func TestBusy(t *testing.T) {
	r := rig.Open(t)
	r.Buffer(64, ibv.ACCESS_LOCAL_WRITE)
	assert.ErrorIs(t, verbs.DeallocPD(r.PD), syscall.EBUSY)
	r.Buffer(64, ibv.ACCESS_LOCAL_WRITE)
}
