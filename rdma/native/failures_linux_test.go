// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/uapi"
)

// failing is a Kernel whose call number at fails with errno. The kernel closes a descriptor even if close fails, and
// unmapping a complete mapping cannot fail.
type failing struct {
	Kernel
	errno  syscall.Errno
	at     int // from 0; -1 for none
	calls  int
	failed string // the call that failed
}

func (k *failing) fails(call string, a ...any) bool {
	k.calls++
	if k.calls-1 == k.at {
		k.failed = fmt.Sprintf(call, a...)
		return true
	}
	return false
}

func (k *failing) Devices() ([]DeviceInfo, error) {
	if k.fails("devices") {
		return nil, k.errno
	}
	return k.Kernel.Devices()
}

func (k *failing) Open(path string) (int32, syscall.Errno) {
	if k.fails("open") {
		return -1, k.errno
	}
	return k.Kernel.Open(path)
}

func (k *failing) Ioctl(fd int32, request uintptr, command unsafe.Pointer) syscall.Errno {
	h := (*uapi.IBUverbsIoctlHdr)(command)
	name := fmt.Sprint("ioctl of object ", h.ObjectID, ", method ", h.MethodID)
	for _, a := range unsafe.Slice((*uapi.IBUverbsAttr)(unsafe.Add(command, unsafe.Sizeof(*h))), h.NumAttrs) {
		if h.ObjectID == 0 && h.MethodID == 0 && a.AttrID == uint16(uapi.UVERBS_ATTR_WRITE_CMD) {
			name = uapi.IBUverbsWriteCmds(*a.Data()).String()
		}
	}
	if k.fails("%s", name) {
		return k.errno
	}
	return k.Kernel.Ioctl(fd, request, command)
}

func (k *failing) Mmap(fd int32, offset int64, length int) ([]byte, syscall.Errno) {
	if k.fails("mmap") {
		return nil, k.errno
	}
	return k.Kernel.Mmap(fd, offset, length)
}

func (k *failing) Read(fd int32, b []byte) (int, syscall.Errno) {
	if k.fails("read") {
		return 0, k.errno
	}
	return k.Kernel.Read(fd, b)
}

func (k *failing) Close(fd int32) syscall.Errno {
	errno := k.Kernel.Close(fd)
	if k.fails("close") {
		return k.errno
	}
	return errno
}

// session is a use of a device. Its steps end at the first error; release destroys what they created.
type session struct {
	t       *testing.T
	release []func() error
}

// defers registers the destruction of an object. One that fails is repeated.
func (s *session) defers(destroy func() error) { s.release = append(s.release, destroy) }

// made returns the result of a constructor, and registers its destruction.
func made[T any](s *session, object *T, err error, destroy func(*T) error) (*T, error) {
	if err == nil {
		s.defers(func() error { return destroy(object) })
	}
	return object, err
}

// run opens the device, creates and uses an object of every kind, and destroys all.
func (s *session) run(b *Backend) (err error) {
	defer func() {
		for i := len(s.release) - 1; i >= 0; i-- {
			if e := s.release[i](); e != nil {
				if err == nil {
					err = e
				}
				assert.NoError(s.t, s.release[i](), "the second try")
			}
		}
	}()
	var n int32
	list, err := verbs.From{Backend: b}.GetDeviceList(&n)
	if err != nil {
		return err
	}
	c, err := verbs.OpenDevice(list.Deref())
	verbs.FreeDeviceList(list)
	if c, err = made(s, c, err, verbs.CloseDevice); err != nil {
		return err
	}
	var device ibv.DeviceAttr
	var port ibv.PortAttr
	var gid ibv.GID
	entries := make([]ibv.GIDEntry, 4)
	for _, query := range []func() error{
		func() error { return verbs.QueryDevice(c, &device) },
		func() error { return verbs.QueryDeviceEx(c, nil, new(ibv.DeviceAttrEx)) },
		func() error { return verbs.QueryPort(c, fakePort, &port) },
		func() error { return verbs.QueryGID(c, fakePort, 0, &gid) },
		func() error { return verbs.QueryGIDEx(c, fakePort, 0, &entries[0], 0) },
		func() error { _, err := verbs.QueryGIDTable(c, &entries[0], uint64(len(entries)), 0); return err },
	} {
		if err := query(); err != nil {
			return err
		}
	}
	pd, err := verbs.AllocPD(c)
	if pd, err = made(s, pd, err, verbs.DeallocPD); err != nil {
		return err
	}
	memory := make([]byte, 4096)
	address := uintptr(unsafe.Pointer(&memory[0]))
	mr, err := verbs.RegMR(pd, address, uint64(len(memory)), ibv.ACCESS_LOCAL_WRITE)
	if mr, err = made(s, mr, err, verbs.DeregMR); err != nil {
		return err
	}
	if _, err := verbs.ReregMR(mr, ibv.REREG_MR_CHANGE_ACCESS, nil, 0, 0, ibv.ACCESS_REMOTE_READ); err != nil {
		return err
	}
	mw, err := verbs.AllocMW(pd, ibv.MW_TYPE_1)
	if mw, err = made(s, mw, err, verbs.DeallocMW); err != nil {
		return err
	}
	channel, err := verbs.CreateCompChannel(c)
	if channel, err = made(s, channel, err, verbs.DestroyCompChannel); err != nil {
		return err
	}
	cq, err := verbs.CreateCQ(c, 8, 5, channel, 0)
	if cq, err = made(s, cq, err, verbs.DestroyCQ); err != nil {
		return err
	}
	if err := verbs.ResizeCQ(cq, 16); err != nil {
		return err
	}
	srq, err := verbs.CreateSRQ(pd, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 2}})
	if srq, err = made(s, srq, err, verbs.DestroySRQ); err != nil {
		return err
	}
	if err := verbs.ModifySRQ(srq, &ibv.SRQAttr{MaxWR: 32}, ibv.SRQ_MAX_WR); err != nil {
		return err
	}
	if err := verbs.QuerySRQ(srq, new(ibv.SRQAttr)); err != nil {
		return err
	}
	ah, err := verbs.CreateAH(pd, &ibv.AHAttr{IsGlobal: 1, PortNum: fakePort})
	if _, err = made(s, ah, err, verbs.DestroyAH); err != nil {
		return err
	}
	for _, shared := range []*ibv.SRQ{nil, srq} {
		if err := s.queuePair(c, pd, cq, channel, shared, mw, mr); err != nil {
			return err
		}
	}
	return s.extended(c, pd)
}

// extended creates an extended queue pair and completion queue, posts, and polls.
func (s *session) extended(c *ibv.Context, pd *ibv.PD) error {
	cq, err := verbs.CreateCQEx(c, &ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_STANDARD_FLAGS})
	if cq, err = made(s, cq, err, func(cq *ibv.CQEx) error { return verbs.DestroyCQ(verbs.CQExToCQ(cq)) }); err != nil {
		return err
	}
	of := ibv.PtrTo(verbs.CQExToCQ(cq))
	qp, err := verbs.CreateQPEx(c, &ibv.QPInitAttrEx{SendCQ: of, RecvCQ: of, QPType: ibv.QPT_RC, PD: ibv.PtrTo(pd),
		Cap:          ibv.QPCap{MaxSendWR: 3, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 1},
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_FLUSH})
	if qp, err = made(s, qp, err, verbs.DestroyQP); err != nil {
		return err
	}
	if err := verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE); err != nil {
		return err
	}
	x, err := verbs.QPToQPEx(qp)
	if err != nil {
		return err
	}
	x.WRFlags = ibv.SEND_SIGNALED
	assert.NoError(s.t, verbs.WRStart(x))
	assert.NoError(s.t, verbs.WRFlush(x, 1, 2, 3, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
	if err := verbs.WRComplete(x); err != nil {
		return err
	}
	assert.NoError(s.t, verbs.StartPoll(cq, new(ibv.PollCQAttr)))
	return verbs.EndPoll(cq)
}

// queuePair creates a queue pair, posts to it, and waits for events.
func (s *session) queuePair(c *ibv.Context, pd *ibv.PD, cq *ibv.CQ, channel *ibv.CompChannel, shared *ibv.SRQ,
	mw *ibv.MW, mr *ibv.MR) error {
	attr := &ibv.QPInitAttr{SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), SRQ: ibv.PtrTo(shared), QPType: ibv.QPT_RC,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16}}
	qp, err := verbs.CreateQP(pd, attr)
	if qp, err = made(s, qp, err, verbs.DestroyQP); err != nil {
		return err
	}
	for _, state := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
		if err := verbs.ModifyQP(qp, &ibv.QPAttr{QPState: state}, ibv.QP_STATE); err != nil {
			return err
		}
	}
	if err := verbs.QueryQP(qp, new(ibv.QPAttr), ibv.QP_STATE, new(ibv.QPInitAttr)); err != nil {
		return err
	}
	var gid ibv.GID
	if err := verbs.AttachMcast(qp, &gid, 0); err != nil {
		return err
	}
	if err := verbs.DetachMcast(qp, &gid, 0); err != nil {
		return err
	}
	recv, bad := &ibv.RecvWR{WRID: 1}, ibv.Ptr[ibv.RecvWR](0)
	if shared != nil {
		err = verbs.PostSRQRecv(shared, recv, &bad)
	} else {
		err = verbs.PostRecv(qp, recv, &bad)
	}
	if err != nil {
		return err
	}
	if err := verbs.ReqNotifyCQ(cq, 0); err != nil {
		return err
	}
	send, badSend := &ibv.SendWR{WRID: 2, Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}, ibv.Ptr[ibv.SendWR](0)
	if err := verbs.PostSend(qp, send, &badSend); err != nil {
		return err
	}
	bind := &ibv.MWBind{WRID: 3, SendFlags: ibv.SEND_SIGNALED,
		BindInfo: ibv.MWBindInfo{MR: ibv.PtrTo(mr), Addr: uint64(mr.Addr), Length: 8}}
	if err := verbs.BindMW(qp, mw, bind); err != nil {
		return err
	}
	var of ibv.Ptr[ibv.CQ]
	var ctx uintptr
	if err := verbs.GetCQEvent(channel, &of, &ctx); err != nil {
		return err
	}
	assert.Equal(s.t, ibv.PtrTo(cq), of)
	assert.EqualValues(s.t, 5, ctx)
	if err := verbs.AckCQEvents(cq, 1); err != nil {
		return err
	}
	var wcs [4]ibv.WC
	polled, err := verbs.PollCQ(cq, len(wcs), &wcs[0])
	if err != nil {
		return err
	}
	assert.Equal(s.t, 2, polled)
	if err := verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE); err != nil {
		return err
	}
	var event ibv.AsyncEvent
	if err := verbs.GetAsyncEvent(c, &event); err != nil {
		return err
	}
	assert.Equal(s.t, ibv.PtrTo(qp), *event.Element.QP())
	return verbs.AckAsyncEvent(&event)
}

// records returns the number of records in a Backend's Space, without unused commands.
func records(b *Backend) int {
	field := func(v any, name string) int { return reflect.ValueOf(v).Elem().FieldByName(name).Len() }
	return field(b.space, "size") - field(&b.commands, "free")
}

func newBackend(t *testing.T, k Kernel) *Backend {
	t.Helper()
	b, err := New(k)
	require.NoError(t, err)
	return b
}

// released asserts that neither the kernel nor the Backend has an object left.
func released(t *testing.T, b *Backend, k *fake) {
	t.Helper()
	assert.Empty(t, k.left())
	assert.Empty(t, b.objects)
	assert.Zero(t, records(b), "records")
}

// TestEveryCallFailsOnce: if any system call of a session fails, the session gets an error and can release everything.
func TestEveryCallFailsOnce(t *testing.T) {
	kernel := &failing{errno: syscall.EIO}
	b := newBackend(t, kernel)
	run := func(at int) (*fake, error) {
		device := newFake()
		device.caps = uapi.IB_UVERBS_DEVICE_FLUSH_GLOBAL
		kernel.Kernel, kernel.at, kernel.calls, kernel.failed = device, at, 0, ""
		return device, (&session{t: t}).run(b)
	}
	device, err := run(-1)
	require.NoError(t, err)
	released(t, b, device)
	total := kernel.calls
	require.Greater(t, total, 50)
	for at := range total {
		device, err := run(at)
		name := kernel.failed
		require.NotEmpty(t, name)
		t.Run(fmt.Sprintf("%d %s", at, name), func(t *testing.T) {
			switch name {
			case "close": // its result is ignored
			case "devices":
				assert.ErrorIs(t, err, syscall.ENOSYS)
			default:
				assert.ErrorIs(t, err, kernel.errno)
			}
			released(t, b, device)
		})
	}
}

// TestOldKernel: a session works on a kernel without the methods of later ones.
func TestOldKernel(t *testing.T) {
	device := newFake()
	device.old, device.caps = true, uapi.IB_UVERBS_DEVICE_FLUSH_GLOBAL
	b := newBackend(t, device)
	require.NoError(t, (&session{t: t}).run(b))
	released(t, b, device)
}

// opened returns a context of a Backend over a device whose answers tamper changes, and releases it with the test.
func opened(t *testing.T) (*Backend, *fake, *ibv.Context, *ibv.PD) {
	k := newFake()
	b := newBackend(t, k)
	t.Cleanup(func() { released(t, b, k) })
	var n int32
	list, err := verbs.From{Backend: b}.GetDeviceList(&n)
	require.NoError(t, err)
	c, err := verbs.OpenDevice(list.Deref())
	verbs.FreeDeviceList(list)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.CloseDevice(c)) })
	pd, err := verbs.AllocPD(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(pd)) })
	return b, k, c, pd
}

// TestQueuesOutOfRange: queues whose header or size does not fit the answer are an error, and nothing is left of the
// object. So is a resized queue, which the process cannot use after that.
func TestQueuesOutOfRange(t *testing.T) {
	_, k, c, pd := opened(t)
	cq, err := verbs.CreateCQ(c, 8, 0, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(cq)) })
	srq, err := verbs.CreateSRQ(pd, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 2}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	attr := ibv.QPInitAttr{SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), QPType: ibv.QPT_RC,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	create := map[uapi.IBUverbsWriteCmds]func() error{
		uapi.IB_USER_VERBS_CMD_CREATE_CQ: func() error { _, err := verbs.CreateCQ(c, 8, 0, nil, 0); return err },
		uapi.IB_USER_VERBS_CMD_CREATE_SRQ: func() error {
			_, err := verbs.CreateSRQ(pd, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 2}})
			return err
		},
		uapi.IB_USER_VERBS_CMD_CREATE_QP: func() error { attr := attr; _, err := verbs.CreateQP(pd, &attr); return err },
		uapi.IB_USER_VERBS_CMD_RESIZE_CQ: func() error { return verbs.ResizeCQ(cq, 16) },
	}
	infos := func(number uapi.IBUverbsWriteCmds, driver unsafe.Pointer) []*uapi.Mminfo {
		if number == uapi.IB_USER_VERBS_CMD_CREATE_QP {
			r := (*uapi.RXECreateQPResp)(driver)
			return []*uapi.Mminfo{&r.SQMi, &r.RQMi}
		}
		return []*uapi.Mminfo{(*uapi.Mminfo)(driver)}
	}
	header := func(info *uapi.Mminfo) *uapi.RXEQueueBuf {
		return (*uapi.RXEQueueBuf)(unsafe.Pointer(unsafe.SliceData(k.pending[info.Offset])))
	}
	for name, change := range map[string]func(*uapi.Mminfo){
		"no bytes":           func(i *uapi.Mminfo) { i.Size = 0 },
		"no header":          func(i *uapi.Mminfo) { i.Size = 8 },
		"half of the queue":  func(i *uapi.Mminfo) { i.Size = 600 },
		"another place":      func(i *uapi.Mminfo) { i.Offset += 1 << 40 },
		"a negative place":   func(i *uapi.Mminfo) { i.Offset = 1 << 63 },
		"the largest mask":   func(i *uapi.Mminfo) { header(i).IndexMask = ^uint32(0) },
		"a mask with a hole": func(i *uapi.Mminfo) { header(i).IndexMask = 5 },
		"a large shift":      func(i *uapi.Mminfo) { header(i).Log2ElemSize = 40 },
		"small elements":     func(i *uapi.Mminfo) { header(i).Log2ElemSize = 2 },
	} {
		for number, f := range create {
			for which := range len(infos(number, unsafe.Pointer(new(uapi.RXECreateQPResp)))) {
				k.tamper = func(n uapi.IBUverbsWriteCmds, core, driver unsafe.Pointer) {
					if n == number {
						change(infos(number, driver)[which])
					}
				}
				assert.Error(t, f(), "%v: %s", number, name)
				k.tamper = nil
			}
		}
	}
	var wc ibv.WC
	_, err = verbs.PollCQ(cq, 1, &wc)
	assert.Error(t, err, "poll after a failed resize")
	require.NoError(t, verbs.ResizeCQ(cq, 16))
	n, err := verbs.PollCQ(cq, 1, &wc)
	assert.NoError(t, err)
	assert.Zero(t, n)
}

// TestCapacitiesOutOfRange: capacities in an answer that do not fit the queues are an error.
func TestCapacitiesOutOfRange(t *testing.T) {
	_, k, c, pd := opened(t)
	cq, err := verbs.CreateCQ(c, 8, 0, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(cq)) })
	for name, change := range map[string]func(*uapi.IBUverbsCreateQPResp){
		"entries of a send":    func(r *uapi.IBUverbsCreateQPResp) { r.MaxSendSGE = ^uint32(0) },
		"entries of a receive": func(r *uapi.IBUverbsCreateQPResp) { r.MaxRecvSGE = ^uint32(0) },
		"inline data":          func(r *uapi.IBUverbsCreateQPResp) { r.MaxInlineData = 1 << 20 },
	} {
		k.tamper = func(n uapi.IBUverbsWriteCmds, core, _ unsafe.Pointer) {
			if n == uapi.IB_USER_VERBS_CMD_CREATE_QP {
				change((*uapi.IBUverbsCreateQPResp)(core))
			}
		}
		_, err := verbs.CreateQP(pd, &ibv.QPInitAttr{SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), QPType: ibv.QPT_RC,
			Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		assert.ErrorIs(t, err, syscall.EIO, name)
	}
	k.tamper = nil
}

// TestGIDTableOutOfRange: the number of entries is at most what the caller has room for, whatever the kernel reports.
func TestGIDTableOutOfRange(t *testing.T) {
	_, k, c, _ := opened(t)
	entries := make([]ibv.GIDEntry, 3)
	for _, n := range []uint64{4, 1 << 32, ^uint64(0)} {
		k.tamper = func(_ uapi.IBUverbsWriteCmds, core, _ unsafe.Pointer) { *(*uint64)(core) = n }
		got, err := verbs.QueryGIDTable(c, &entries[0], uint64(len(entries)), 0)
		assert.NoError(t, err)
		assert.EqualValues(t, len(entries), got)
	}
	k.tamper = nil
	for _, length := range []uint32{0, 1 << 31, ^uint32(0)} {
		k.tamper = func(n uapi.IBUverbsWriteCmds, core, _ unsafe.Pointer) {
			if n == uapi.IB_USER_VERBS_CMD_QUERY_PORT {
				(*uapi.IBUverbsQueryPortResp)(core).GIDTblLen = length
			}
		}
		var gid ibv.GID
		assert.ErrorIs(t, verbs.QueryGID(c, fakePort, 0, &gid), syscall.EINVAL, "%d", length)
	}
	k.tamper = nil
}

// TestEventsOutOfRange: events that are too short are an error, and so are events of unknown objects and of objects of
// another kind.
func TestEventsOutOfRange(t *testing.T) {
	_, k, c, _ := opened(t)
	channel, err := verbs.CreateCompChannel(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCompChannel(channel)) })
	cq, err := verbs.CreateCQ(c, 8, 5, channel, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(cq)) })
	of, ctx, event := ibv.Ptr[ibv.CQ](0), uintptr(0), ibv.AsyncEvent{}
	for n := range 8 {
		k.event(channel.FD, make([]byte, n), nil)
		assert.ErrorIs(t, verbs.GetCQEvent(channel, &of, &ctx), syscall.EIO)
	}
	for n := range 16 {
		k.event(c.AsyncFD, make([]byte, n), nil)
		assert.ErrorIs(t, verbs.GetAsyncEvent(c, &event), syscall.EIO)
	}
	for _, address := range []uint64{0, 1, ^uint64(0), addressOf(c), addressOf(channel), addressOf(cq) + 8} {
		k.event(channel.FD, binary.NativeEndian.AppendUint64(nil, address), nil)
		assert.ErrorIs(t, verbs.GetCQEvent(channel, &of, &ctx), syscall.EIO)
	}
	for _, address := range []uint64{0, 1, addressOf(c), addressOf(cq)} {
		k.asyncEvent(ibv.EVENT_QP_FATAL, address, nil)
		assert.ErrorIs(t, verbs.GetAsyncEvent(c, &event), syscall.EIO)
	}
	k.asyncEvent(ibv.EVENT_PORT_ERR, fakePort, nil)
	require.NoError(t, verbs.GetAsyncEvent(c, &event))
	assert.EqualValues(t, fakePort, *event.Element.PortNum())
	k.asyncEvent(ibv.EVENT_CQ_ERR, addressOf(cq), nil)
	require.NoError(t, verbs.GetAsyncEvent(c, &event))
	assert.Equal(t, ibv.PtrTo(cq), *event.Element.CQ())
}

// TestBuffers: buffers are registered in their domain, within their bounds.
func TestBuffers(t *testing.T) {
	_, _, c, pd := opened(t)
	other, err := verbs.AllocPD(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(other)) })
	var buf ibv.Ptr[ibv.Buf]
	at, err := verbs.AllocBuf(pd, 5000, &buf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.FreeBuf(buf.Deref())) })
	for name, c := range map[string]struct {
		pd      *ibv.PD
		address uintptr
		length  uint64
		errno   error
	}{
		"all": {pd, at, 5000, nil}, "the end": {pd, at + 4999, 1, nil}, "too long": {pd, at, 5001, syscall.EINVAL},
		"behind it": {pd, at + 5001, 0, syscall.EINVAL}, "before it": {pd, at - 1, 2, syscall.EINVAL},
		"wraps around": {pd, at + 1, ^uint64(0), syscall.EINVAL}, "another domain": {other, at, 1, syscall.EINVAL},
	} {
		mr, err := verbs.RegBufMR(c.pd, buf.Deref(), c.address, c.length, ibv.ACCESS_LOCAL_WRITE)
		assert.ErrorIs(t, err, c.errno, name)
		if err == nil {
			require.NoError(t, verbs.DeregMR(mr))
		}
	}
	_, err = verbs.ExportBufDMABufFD(buf.Deref())
	assert.ErrorIs(t, err, syscall.ENODATA)
	_, err = verbs.AllocBuf(pd, 1<<63, &buf)
	assert.ErrorIs(t, err, syscall.ENOMEM)
}

// TestFork: where the kernel copies registered memory at a fork, nothing else is needed. Elsewhere ibv_fork_init fails,
// after a registration as in libibverbs.
func TestFork(t *testing.T) {
	b, k, _, pd := opened(t)
	from := verbs.From{Backend: b}
	status := func() ibv.ForkStatus {
		s, err := from.IsForkInitialized()
		require.NoError(t, err)
		return s
	}
	assert.Equal(t, ibv.FORK_UNNEEDED, status())
	assert.NoError(t, from.ForkInit())
	k.old = true
	assert.Equal(t, ibv.FORK_DISABLED, status())
	assert.ErrorIs(t, from.ForkInit(), syscall.ENOSYS)
	memory := make([]byte, 64)
	mr, err := verbs.RegMR(pd, uintptr(unsafe.Pointer(&memory[0])), uint64(len(memory)), 0)
	require.NoError(t, err)
	require.NoError(t, verbs.DeregMR(mr))
	assert.ErrorIs(t, from.ForkInit(), syscall.EINVAL)
	k.old = false
	assert.NoError(t, from.ForkInit())
}
