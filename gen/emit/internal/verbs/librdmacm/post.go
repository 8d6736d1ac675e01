// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package librdmacm

import (
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// PostRecvv posts one receive request with nsge elements to the identifier's shared receive queue, or to its queue pair
// if it has none. context is the work request's ID. The error is that of the posting call.
//
//verbs:c int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge)
//go:uintptrescapes
func PostRecvv(id *rdmacm.CMID, context uintptr, sgl *ibv.SGE, nsge int) error {
	if id == nil {
		return missing("rdma_post_recvv", "id")
	}
	var bad ibv.Ptr[ibv.RecvWR]
	wr := ibv.RecvWR{WRID: uint64(context), SGList: ibv.Ptr[ibv.SGE](address(uintptr(unsafe.Pointer(sgl)))),
		NumSGE: int32(nsge)}
	defer goruntime.KeepAlive(sgl)
	if srq := id.SRQ.Deref(); srq != nil {
		return libibverbs.PostSRQRecv(srq, &wr, &bad)
	}
	return libibverbs.PostRecv(id.QP.Deref(), &wr, &bad)
}

// post posts one send request with the given elements.
func post(function string, id *rdmacm.CMID, sgl *ibv.SGE, wr *ibv.SendWR) error {
	if id == nil {
		return missing(function, "id")
	}
	var bad ibv.Ptr[ibv.SendWR]
	wr.SGList = ibv.Ptr[ibv.SGE](address(uintptr(unsafe.Pointer(sgl))))
	defer goruntime.KeepAlive(sgl)
	return libibverbs.PostSend(id.QP.Deref(), wr, &bad)
}

// PostSendv posts one send request with nsge elements. context is the work request's ID. The error is that of the
// posting call.
//
//verbs:c int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags)
//go:uintptrescapes
func PostSendv(id *rdmacm.CMID, context uintptr, sgl *ibv.SGE, nsge int, flags ibv.SendFlags) error {
	return post("rdma_post_sendv", id, sgl, &ibv.SendWR{WRID: uint64(context), NumSGE: int32(nsge),
		Opcode: ibv.WR_SEND, SendFlags: flags})
}

// PostReadv posts one RDMA read into nsge elements. context is the work request's ID. The error is that of the posting
// call.
//
//verbs:c int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags, uint64_t remote_addr, uint32_t rkey)
//go:uintptrescapes
func PostReadv(id *rdmacm.CMID, context uintptr, sgl *ibv.SGE, nsge int, flags ibv.SendFlags, remoteAddr uint64,
	rkey uint32) error {
	wr := ibv.SendWR{WRID: uint64(context), NumSGE: int32(nsge), Opcode: ibv.WR_RDMA_READ, SendFlags: flags}
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remoteAddr, RKey: rkey}
	return post("rdma_post_readv", id, sgl, &wr)
}

// PostWritev posts one RDMA write of nsge elements. context is the work request's ID. The error is that of the posting
// call.
//
//verbs:c int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags, uint64_t remote_addr, uint32_t rkey)
//go:uintptrescapes
func PostWritev(id *rdmacm.CMID, context uintptr, sgl *ibv.SGE, nsge int, flags ibv.SendFlags, remoteAddr uint64,
	rkey uint32) error {
	wr := ibv.SendWR{WRID: uint64(context), NumSGE: int32(nsge), Opcode: ibv.WR_RDMA_WRITE, SendFlags: flags}
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: remoteAddr, RKey: rkey}
	return post("rdma_post_writev", id, sgl, &wr)
}

// element describes memory of a region. Without a region, the memory must be sent inline.
func element(addr uintptr, length uint64, mr *ibv.MR) *ibv.SGE {
	sge := ibv.SGE{Addr: uint64(addr), Length: uint32(length)}
	if mr != nil {
		sge.LKey = mr.LKey
	}
	return &sge
}

// PostRecv is [PostRecvv] for one buffer, which must lie in the region. Otherwise the error is EINVAL; C aborts the
// program.
//
//verbs:c int rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr)
//go:uintptrescapes
func PostRecv(id *rdmacm.CMID, context, addr uintptr, length uint64, mr *ibv.MR) error {
	if mr == nil {
		return missing("rdma_post_recv", "mr")
	}
	if addr < mr.Addr || uint64(addr-mr.Addr) > mr.Length || length > mr.Length-uint64(addr-mr.Addr) {
		return &runtime.CallError{Function: "rdma_post_recv", Errno: 22} // EINVAL
	}
	return PostRecvv(id, context, element(addr, length, mr), 1)
}

// PostSend is [PostSendv] for one buffer; mr is nil for memory that is sent inline.
//
//verbs:c int rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr, int flags)
//go:uintptrescapes
func PostSend(id *rdmacm.CMID, context, addr uintptr, length uint64, mr *ibv.MR, flags ibv.SendFlags) error {
	return PostSendv(id, context, element(addr, length, mr), 1, flags)
}

// PostRead is [PostReadv] for one buffer.
//
//verbs:c int rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr, int flags, uint64_t remote_addr, uint32_t rkey)
//go:uintptrescapes
func PostRead(id *rdmacm.CMID, context, addr uintptr, length uint64, mr *ibv.MR, flags ibv.SendFlags,
	remoteAddr uint64, rkey uint32) error {
	if mr == nil {
		return missing("rdma_post_read", "mr")
	}
	return PostReadv(id, context, element(addr, length, mr), 1, flags, remoteAddr, rkey)
}

// PostWrite is [PostWritev] for one buffer; mr is nil for memory that is sent inline.
//
//verbs:c int rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr, int flags, uint64_t remote_addr, uint32_t rkey)
//go:uintptrescapes
func PostWrite(id *rdmacm.CMID, context, addr uintptr, length uint64, mr *ibv.MR, flags ibv.SendFlags,
	remoteAddr uint64, rkey uint32) error {
	return PostWritev(id, context, element(addr, length, mr), 1, flags, remoteAddr, rkey)
}

// PostUDSend posts one datagram to a queue pair, with the connection manager's Q_Key. mr is nil for memory that is sent
// inline. The error is that of the posting call.
//
//verbs:c int rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr, int flags, struct ibv_ah *ah, uint32_t remote_qpn)
//go:uintptrescapes
func PostUDSend(id *rdmacm.CMID, context, addr uintptr, length uint64, mr *ibv.MR, flags ibv.SendFlags, ah *ibv.AH,
	remoteQPN uint32) error {
	wr := ibv.SendWR{WRID: uint64(context), NumSGE: 1, Opcode: ibv.WR_SEND, SendFlags: flags}
	*wr.WR.UD() = ibv.SendUD{AH: ibv.Ptr[ibv.AH](uintptr(unsafe.Pointer(ah))), RemoteQPN: remoteQPN,
		RemoteQKey: rdmacm.UDP_QKEY}
	return post("rdma_post_ud_send", id, element(addr, length, mr), &wr)
}

// GetSendComp waits for a completion of the identifier's send queue and writes it to wc. The result is 1.
//
//verbs:c int rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
func GetSendComp(id *rdmacm.CMID, wc *ibv.WC) (int, error) {
	if id == nil {
		return 0, missing("rdma_get_send_comp", "id")
	}
	return completion(id.SendCQ.Deref(), id.SendCQChannel.Deref(), wc)
}

// GetRecvComp waits for a completion of the identifier's receive queue and writes it to wc. The result is 1.
//
//verbs:c int rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
func GetRecvComp(id *rdmacm.CMID, wc *ibv.WC) (int, error) {
	if id == nil {
		return 0, missing("rdma_get_recv_comp", "id")
	}
	return completion(id.RecvCQ.Deref(), id.RecvCQChannel.Deref(), wc)
}

// completion polls. If there is no completion, it arms the queue, polls again to avoid a race, and waits for the event.
func completion(cq *ibv.CQ, channel *ibv.CompChannel, wc *ibv.WC) (int, error) {
	var of ibv.Ptr[ibv.CQ]
	var context uintptr
	for {
		if n, err := libibverbs.PollCQ(cq, 1, wc); n != 0 || err != nil {
			return n, err
		}
		if err := libibverbs.ReqNotifyCQ(cq, 0); err != nil {
			return 0, err
		}
		if n, err := libibverbs.PollCQ(cq, 1, wc); n != 0 || err != nil {
			return n, err
		}
		if err := libibverbs.GetCQEvent(channel, &of, &context); err != nil {
			return 0, err
		}
		if err := libibverbs.AckCQEvents(cq, 1); err != nil {
			return 0, err
		}
	}
}
