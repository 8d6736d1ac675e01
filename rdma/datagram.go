package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// GRHBytes is the room that a receive of a UD queue pair has to have in front of the message: for the global routing header.
const GRHBytes = int(unsafe.Sizeof(ibv.GRH{}))

// Datagram takes a receive of a UD queue pair apart: buffer is the memory that was posted, one piece from its first byte on, and wc the
// completion. payload is the message, a part of buffer; grh the header in front of it, or nil where the completion says that there is none
// (then what is there means nothing). Neither is a copy.
//
// Man: ibv_poll_cq(3)
func Datagram(wc *ibv.WC, buffer []byte) (payload []byte, grh *ibv.GRH, err error) {
	if wc.Status != ibv.WC_SUCCESS {
		return nil, nil, CompletionErr(wc)
	}
	if int(wc.ByteLen) > len(buffer) || int(wc.ByteLen) < GRHBytes {
		return nil, nil, invalid("ibv_poll_cq", "", "a datagram of %d bytes, header included, is not in a buffer of %d", wc.ByteLen, len(buffer))
	}
	if wc.WCFlags&ibv.WC_GRH != 0 {
		grh = (*ibv.GRH)(unsafe.Pointer(unsafe.SliceData(buffer)))
	}
	return buffer[GRHBytes:wc.ByteLen], grh, nil
}
