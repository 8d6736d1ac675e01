// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// GRHBytes is the size of the global routing header. A receive of a UD queue pair needs this room in front of the
// message.
const GRHBytes = int(unsafe.Sizeof(ibv.GRH{}))

// Datagram splits a completed receive of a UD queue pair. buffer is the posted memory, in one piece from its first
// byte, and wc the completion. payload is the part of buffer with the message. grh is the header in front of it, or nil
// if the completion says that there is none; the bytes mean nothing then. Between IPv4 addresses, RoCE v2 has the IPv4
// header in the last 20 of those 40 bytes, and the fields of grh mean nothing. Neither is a copy.
//
// Man: ibv_poll_cq(3)
func Datagram(wc *ibv.WC, buffer []byte) (payload []byte, grh *ibv.GRH, err error) {
	if wc.Status != ibv.WC_SUCCESS {
		return nil, nil, CompletionErr(wc)
	}
	if int(wc.ByteLen) > len(buffer) || int(wc.ByteLen) < GRHBytes {
		return nil, nil,
			verberr.Invalid("ibv_poll_cq", "", "a datagram of %d bytes, header included, is not in a buffer of %d",
				wc.ByteLen, len(buffer))
	}
	if wc.WCFlags&ibv.WC_GRH != 0 {
		grh = (*ibv.GRH)(unsafe.Pointer(unsafe.SliceData(buffer)))
	}
	return buffer[GRHBytes:wc.ByteLen], grh, nil
}
