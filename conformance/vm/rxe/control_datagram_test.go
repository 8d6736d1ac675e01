// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"unsafe"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

var datagramControls = []control{
	{verb: "ibv_create_ah", what: works, call: createAH(func(*ibv.AHAttr) {})},
	{verb: "ibv_create_ah", what: "not global, where the port requires it",
		call: createAH(func(a *ibv.AHAttr) { a.IsGlobal = 0 })},
	{verb: "ibv_create_ah", what: "no such port", call: createAH(func(a *ibv.AHAttr) { a.PortNum = noPort })},
	{verb: "ibv_create_ah", what: "empty GID", call: createAH(func(a *ibv.AHAttr) { a.GRH.SGIDIndex = 200 })},
	{verb: "ibv_create_ah", what: "GID index beyond the table",
		why: "the index has 8 bits, and the table more entries"},
	{verb: "ibv_create_ah", what: "destination that no address resolves to",
		call: createAH(func(a *ibv.AHAttr) { a.GRH.DGID = ibv.GID{} })},
	{verb: "ibv_destroy_ah", what: works, call: createAH(func(*ibv.AHAttr) {})},
	{verb: "ibv_destroy_ah", what: "any", why: "the page documents none, and nothing depends on a handle"},
	{verb: "ibv_init_ah_from_wc", what: works, call: withReceived(func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error {
		attr := new(ibv.AHAttr)
		if err := verbs.InitAHFromWC(r.Context, testbed.PortNum, wc, header, attr); err != nil {
			return err
		}
		if attr.IsGlobal != 1 || attr.GRH.DGID != r.GID || attr.GRH.SGIDIndex != r.Index ||
			attr.PortNum != testbed.PortNum {
			return failed("another address")
		}
		return nil
	})},
	{verb: "ibv_init_ah_from_wc", what: "header without a version",
		call: withReceived(func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error {
			none := testbed.Records[ibv.GRH](r, 1)
			return verbs.InitAHFromWC(r.Context, testbed.PortNum, wc, &none[0], new(ibv.AHAttr))
		})},
	{verb: "ibv_init_ah_from_wc", what: "no such port",
		call: withReceived(func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error {
			return verbs.InitAHFromWC(r.Context, noPort, wc, header, new(ibv.AHAttr))
		})},
	{verb: "ibv_create_ah_from_wc", what: works, call: withReceived(func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error {
		return created(r, verbs.DestroyAH)(verbs.CreateAHFromWC(r.PD, wc, header, testbed.PortNum))
	})},
	{verb: "ibv_create_ah_from_wc", what: "header without a version",
		call: withReceived(func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error {
			none := testbed.Records[ibv.GRH](r, 1)
			return created(r, verbs.DestroyAH)(verbs.CreateAHFromWC(r.PD, wc, &none[0], testbed.PortNum))
		})},
	{verb: "ibv_create_ah_from_wc", what: "completion without a header",
		call: withReceived(func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error {
			wc.WCFlags &^= ibv.WC_GRH
			return created(r, verbs.DestroyAH)(verbs.CreateAHFromWC(r.PD, wc, header, testbed.PortNum))
		})},
	{verb: "ibv_resolve_eth_l2_from_gid", what: works, call: func(r *testbed.Testbed) error {
		attr, mac, vlan := r.AH(), make([]uint8, 6), new(uint16)
		return verbs.ResolveEthL2FromGID(r.Context, &attr, &mac[0], vlan)
	}},
	{verb: "ibv_resolve_eth_l2_from_gid", what: "no such port", call: func(r *testbed.Testbed) error {
		attr, mac, vlan := r.AH(), make([]uint8, 6), new(uint16)
		attr.PortNum = noPort
		return verbs.ResolveEthL2FromGID(r.Context, &attr, &mac[0], vlan)
	}},

	{verb: "ibv_attach_mcast", what: works,
		call: attach(ibv.QPT_UD, func(r *testbed.Testbed, qp *ibv.QP, group *ibv.GID) error { return nil })},
	{verb: "ibv_attach_mcast", what: "queue pair of type RC", call: attach(ibv.QPT_RC, nil)},
	{verb: "ibv_attach_mcast", what: "queue pair of type UC", call: attach(ibv.QPT_UC, nil)},
	{verb: "ibv_attach_mcast", what: "address of one", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		qp, gid := r.QP(ibv.QPT_UD, cq, cq), &testbed.Records[ibv.GID](r, 1)[0]
		r.Bring(qp, ibv.QPS_RTS)
		*gid = r.GID
		err := verbs.AttachMcast(qp, gid, 0)
		if err == nil {
			r.Check(verbs.DetachMcast(qp, gid, 0))
		}
		return err
	}},
	{verb: "ibv_attach_mcast", what: "in the group already, which is allowed",
		call: attach(ibv.QPT_UD, func(r *testbed.Testbed, qp *ibv.QP, group *ibv.GID) error {
			return verbs.AttachMcast(qp, group, 0)
		})},
	{verb: "ibv_detach_mcast", what: works,
		call: attach(ibv.QPT_UD, func(r *testbed.Testbed, qp *ibv.QP, group *ibv.GID) error { return nil })},
	{verb: "ibv_detach_mcast", what: "not in the group", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		qp := r.QP(ibv.QPT_UD, cq, cq)
		r.Bring(qp, ibv.QPS_RTS)
		return verbs.DetachMcast(qp, multicast(r), 0)
	}},
	{verb: "ibv_detach_mcast", what: "queue pair of type RC", call: func(r *testbed.Testbed) error {
		cq := r.CQ(4)
		return verbs.DetachMcast(r.QP(ibv.QPT_RC, cq, cq), multicast(r), 0)
	}},
}

func createAH(change func(*ibv.AHAttr)) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		attr := r.AH()
		change(&attr)
		return created(r, verbs.DestroyAH)(verbs.CreateAH(r.PD, &attr))
	}
}

// multicast returns the GID of the group 239.7.7.7, an IPv4-mapped address.
func multicast(r *testbed.Testbed) *ibv.GID {
	group := &testbed.Records[ibv.GID](r, 1)[0]
	*group.Raw() = [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 7, 14: 7, 15: 7}
	return group
}

// attach attaches a queue pair to a group, calls then, and detaches the queue pair.
func attach(kind ibv.QPType, then func(*testbed.Testbed, *ibv.QP, *ibv.GID) error) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		cq, group := r.CQ(4), multicast(r)
		qp := r.QP(kind, cq, cq)
		r.Bring(qp, ibv.QPS_RTS)
		if err := verbs.AttachMcast(qp, group, 0); err != nil {
			return err
		}
		err := then(r, qp, group)
		r.Check(verbs.DetachMcast(qp, group, 0))
		return err
	}
}

// withReceived receives a datagram and passes its completion and header to f, which derives an address for a reply.
func withReceived(f func(r *testbed.Testbed, wc *ibv.WC, header *ibv.GRH) error) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		p, to := r.Pair(ibv.QPT_UD), r.Buffer(256, local)
		r.Recv(p.B, 7, to.SGE(0, 256))
		datagram(r, p.A, p.ASend, r.Handle(), p.B.QPNum)
		wc, header := &testbed.Records[ibv.WC](r, 1)[0], &testbed.Records[ibv.GRH](r, 1)[0]
		*wc = r.Completion(p.BRecv)
		r.Check(status(*wc))
		copy(unsafe.Slice((*byte)(unsafe.Pointer(header)), grh), to.Bytes)
		return f(r, wc, header)
	}
}

// datagram sends the pattern to a queue pair or a group.
func datagram(r *testbed.Testbed, qp *ibv.QP, cq *ibv.CQ, to *ibv.AH, number uint32) {
	from := r.Buffer(moved, local)
	copy(from.Bytes, pattern())
	l := r.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND, ibv.SEND_SIGNALED, from.SGE(0, moved)
	*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(to), RemoteQPN: number, RemoteQKey: testbed.QKey}
	_, err := l.Post(qp)
	r.Check(err)
	r.Check(status(r.Completion(cq)))
}
