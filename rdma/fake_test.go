// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

// fakePD opens the fake device. Only one test at a time may use it.
func fakePD(t testing.TB) (*fakedevice.Fake, *Device, *PD) {
	f := fakedevice.New()
	d, err := OpenOn(f, "fake")
	d = keep(t, d, err)
	pd, err := d.AllocPD()
	pd = keep(t, pd, err)
	f.Took()
	return f, d, pd
}

// fakeQP creates a queue pair of the fake device. Its completion queue has room for further ones.
func fakeQP(t testing.TB, pd *PD) (*CQ, *QP) {
	f := fakedevice.Current()
	f.QueuePairs()
	cq, err := pd.Device().CreateCQ(64, nil, 0)
	cq = keep(t, cq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RAW_PACKET, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, QueueOptions{})
	qp = keep(t, qp, err)
	f.Took()
	return cq, qp
}
