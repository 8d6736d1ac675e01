// SPDX-License-Identifier: BSD-2-Clause

package rdmatest

import (
	"testing"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// End is one side of a connected pair of queue pairs, with its other objects.
type End struct {
	Device  *rdma.Device
	PD      *rdma.PD
	Channel *rdma.CompChannel
	CQ      *rdma.CQ // completion queue of all work on this side; waits for it work
	QP      *rdma.QP
	MR      *rdma.MR // 64 KiB that the peer may read, write and use atomically

	Peer rdma.Endpoint // the other side's endpoint
	AH   *rdma.AH      // for UD: address handle of the other side; nil for other types
	SRQ  *rdma.SRQ     // for XRC, on the receiving side: destination of the other side's sends
	XRCD *rdma.XRCD    // for XRC, on the receiving side
}

// depth is the number of requests of each queue, and memory the size of the region in bytes.
const (
	depth  = 64
	memory = 64 << 10
	create = 0x40 // Linux's O_CREAT, whose value every device accepts
)

// Pair returns two connected sides, on the first and second device of a fabric, or both on its only device. kind is RC,
// UC or UD, or XRC_SEND for one side that sends and one side that receives, with a queue pair of type XRC_RECV. Both
// are closed when the test ends.
func Pair(t testing.TB, fabric *soft.Fabric, of ibv.QPType) (a, b *End) {
	t.Helper()
	all, err := rdma.DevicesOf(fabric)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("rdmatest: the fabric has no device")
	}
	return pair(t, of, all[0], all[min(1, len(all)-1)])
}

// PairOn is Pair on two devices, named as for rdma.Open: kernel devices, or devices of soft.Default.
func PairOn(t testing.TB, of ibv.QPType, here, there string) (a, b *End) {
	t.Helper()
	all, err := rdma.Devices()
	if err != nil {
		t.Fatal(err)
	}
	var infos [2]rdma.DeviceInfo
	for i, name := range []string{here, there} {
		infos[i] = rdma.DeviceInfo{Name: name}
		for _, info := range all {
			if info.Name == name {
				infos[i] = info
				break
			}
		}
	}
	return pair(t, of, infos[0], infos[1])
}

func pair(t testing.TB, of ibv.QPType, here, there rdma.DeviceInfo) (a, b *End) {
	t.Helper()
	other := of
	switch of {
	case ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD:
	case ibv.QPT_XRC_SEND:
		other = ibv.QPT_XRC_RECV
	default:
		t.Fatalf("rdmatest: a pair of %v: the types are RC, UC, UD and XRC_SEND", of)
	}
	a, b = newEnd(t, of, here), newEnd(t, other, there)
	a.Peer, b.Peer = must(b.QP.Endpoint())(t), must(a.QP.Endpoint())(t)
	for _, e := range []*End{a, b} {
		if err := e.QP.Connect(e.Peer); err != nil {
			t.Fatal(err)
		}
		if of == ibv.QPT_UD {
			path := must(e.QP.Path(e.Peer))(t)
			e.AH = must(e.PD.CreateAH(&path))(t)
		}
	}
	return a, b
}

// newEnd creates the objects of one side.
func newEnd(t testing.TB, of ibv.QPType, on rdma.DeviceInfo) *End {
	t.Helper()
	e := new(End)
	t.Cleanup(func() {
		t.Helper()
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	e.Device = must(on.Open())(t)
	e.PD = must(e.Device.AllocPD())(t)
	e.Channel = must(e.Device.CreateCompChannel())(t)
	e.CQ = must(e.Device.CreateCQ(4*depth, e.Channel, 0))(t)
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_ATOMIC
	e.MR = must(e.PD.RegMR(make([]byte, memory), access))(t)
	attr := &ibv.QPInitAttrEx{QPType: of, CompMask: ibv.QP_INIT_ATTR_PD, PD: e.PD.Ptr(),
		SendCQ: e.CQ.Ptr(), RecvCQ: e.CQ.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2}}
	switch of {
	case ibv.QPT_XRC_SEND:
		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0
	case ibv.QPT_XRC_RECV:
		e.XRCD = must(e.Device.OpenXRCD(&ibv.XRCDInitAttr{
			CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1, Oflags: create}))(t)
		e.SRQ = must(e.Device.CreateSRQEx(&ibv.SRQInitAttrEx{
			Attr: ibv.SRQAttr{MaxWR: depth, MaxSGE: 2}, SRQType: ibv.SRQT_XRC,
			PD: e.PD.Ptr(), XRCD: e.XRCD.Ptr(), CQ: e.CQ.Ptr(),
			CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
		}, rdma.QueueOptions{}))(t)
		attr = &ibv.QPInitAttrEx{QPType: of, CompMask: ibv.QP_INIT_ATTR_XRCD, XRCD: e.XRCD.Ptr()}
	}
	e.QP = must(e.Device.CreateQPEx(attr, rdma.QueueOptions{}))(t)
	return e
}

// close closes the side's objects that the test has not closed.
func (e *End) close() error {
	var all []rdma.Object
	add(&all, e.Device, e.Device != nil)
	add(&all, e.PD, e.PD != nil)
	add(&all, e.Channel, e.Channel != nil)
	add(&all, e.CQ, e.CQ != nil)
	add(&all, e.MR, e.MR != nil)
	add(&all, e.XRCD, e.XRCD != nil)
	add(&all, e.SRQ, e.SRQ != nil)
	add(&all, e.QP, e.QP != nil)
	add(&all, e.AH, e.AH != nil)
	return rdma.CloseAll(nil, all...)
}

func add(all *[]rdma.Object, o rdma.Object, made bool) {
	if made {
		*all = append(*all, o)
	}
}

// must fails the test if there is an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
