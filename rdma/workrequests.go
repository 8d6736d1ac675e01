// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// SendBatch is a chain of send work requests with their scatter/gather entries and inline bytes, in one piece of memory
// that the garbage collector does not own. A method named after an operation appends a request and returns it; methods
// of the request set everything else:
//
//	b.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// A batch can be posted any number of times; WR and SGEs change fields in between. It is for one goroutine at a time
// and allocates nothing.
//
// Methods, which go doc rdma/internal/wq.SendBatch explains:
//
//	Len() int
//	Cap() int
//	Err() error
//	String() string
//	Close() error
//	Reset()
//	Fill(n int) (wrs []ibv.SendWR, sges []ibv.SGE)
//	WR(i int) *ibv.SendWR
//	WRs() []ibv.SendWR
//	SGEs(i int) []ibv.SGE
//	Send(id uint64) SendRequest
//	Driver(id uint64) SendRequest
//	SendImm(id uint64, imm ibv.BE32) SendRequest
//	SendInv(id uint64, rkey uint32) SendRequest
//	LocalInv(id uint64, rkey uint32) SendRequest
//	Write(id uint64, remote uint64, rkey uint32) SendRequest
//	Read(id uint64, remote uint64, rkey uint32) SendRequest
//	WriteImm(id uint64, remote uint64, rkey uint32, imm ibv.BE32) SendRequest
//	CompareSwap(id uint64, remote uint64, rkey uint32, compare uint64, swap uint64) SendRequest
//	FetchAdd(id uint64, remote uint64, rkey uint32, add uint64) SendRequest
//	BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) SendRequest
//	TSO(id uint64, header []byte, mss uint16) SendRequest
type SendBatch = wq.SendBatch

// SendRequest is a work request in a [SendBatch]; its methods set everything but the operation. It is valid until
// Reset.
//
// Methods, which go doc rdma/internal/wq.SendRequest explains:
//
//	SGE(address uint64, length uint32, lkey uint32) SendRequest
//	Add(s ibv.SGE) SendRequest
//	Flags(f ibv.SendFlags) SendRequest
//	Signaled() SendRequest
//	UD(ah ibv.Ptr[ibv.AH], qpn uint32, qkey uint32) SendRequest
//	XRC(srqn uint32) SendRequest
//	Inline(data []byte) SendRequest
//	Index() int
type SendRequest = wq.SendRequest

// NewSendBatch creates an empty batch with room for requests of a number of entries each, and with inline bytes in each
// request for the data that Inline and TSO copy.
func NewSendBatch(requests, sges, inline int) (*SendBatch, error) {
	return wq.NewSendBatch(requests, sges, inline)
}

// RecvBatch is a chain of receive work requests with their scatter entries, for a [RecvQueue] of a queue pair or a
// shared one:
//
//	b.Recv(id).SGE(address, length, lkey)
//
// Everything else is as with [SendBatch].
//
// Methods, which go doc rdma/internal/wq.RecvBatch explains:
//
//	Len() int
//	Cap() int
//	Err() error
//	String() string
//	Close() error
//	Reset()
//	WR(i int) *ibv.RecvWR
//	WRs() []ibv.RecvWR
//	SGEs(i int) []ibv.SGE
//	Recv(id uint64) RecvRequest
type RecvBatch = wq.RecvBatch

// RecvRequest is a work request in a [RecvBatch]. It is valid until Reset.
//
// Methods, which go doc rdma/internal/wq.RecvRequest explains:
//
//	SGE(address uint64, length uint32, lkey uint32) RecvRequest
//	Add(s ibv.SGE) RecvRequest
//	Index() int
type RecvRequest = wq.RecvRequest

// NewRecvBatch creates an empty batch with room for requests of a number of entries each.
func NewRecvBatch(requests, sges int) (*RecvBatch, error) { return wq.NewRecvBatch(requests, sges) }

// TagBatch is a chain of operations on the tag list of an [SRQ] of type IBV_SRQT_TM, with their scatter entries, for
// [SRQ.PostTags]:
//
//	b.AddTag(id, recvID, tag, mask).SGE(address, length, lkey).Signaled()
//
// Methods, which go doc rdma/internal/wq.TagBatch explains:
//
//	String() string
//	Close() error
//	Len() int
//	Cap() int
//	Reset()
//	Err() error
//	AddTag(id uint64, recvID uint64, tag uint64, mask uint64) TagRequest
//	DelTag(id uint64, handle uint32) TagRequest
//	Sync(id uint64, unexpected uint32) TagRequest
//
// Man: ibv_post_srq_ops(3)
type TagBatch = wq.TagBatch

// TagRequest is an operation in a [TagBatch]. It is valid until Reset.
//
// Methods, which go doc rdma/internal/wq.TagRequest explains:
//
//	SGE(address uint64, length uint32, lkey uint32) TagRequest
//	Add(s ibv.SGE) TagRequest
//	Index() int
//	Signaled() TagRequest
//	Unexpected(n uint32) TagRequest
//	Handle() uint32
type TagRequest = wq.TagRequest

// NewTagBatch creates an empty batch with room for operations of a number of entries each.
func NewTagBatch(operations, sges int) (*TagBatch, error) { return wq.NewTagBatch(operations, sges) }

// WRProgram is work that is posted through an extended queue pair: a region from ibv_wr_start to ibv_wr_complete, which
// runs as one call. Build it once, run it any number of times with [QP.PostProgram], and change fields in between:
//
//	p.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// Methods, which go doc rdma/internal/wq.WRProgram explains:
//
//	String() string
//	Reset()
//	Len() int
//	Err() error
//	Send(id uint64) WRRequest
//	SendImm(id uint64, imm ibv.BE32) WRRequest
//	SendInv(id uint64, rkey uint32) WRRequest
//	TSO(id uint64, header []byte, mss uint16) WRRequest
//	Write(id uint64, remote uint64, rkey uint32) WRRequest
//	WriteImm(id uint64, remote uint64, rkey uint32, imm ibv.BE32) WRRequest
//	Read(id uint64, remote uint64, rkey uint32) WRRequest
//	CompareSwap(id uint64, remote uint64, rkey uint32, compare uint64, swap uint64) WRRequest
//	FetchAdd(id uint64, remote uint64, rkey uint32, add uint64) WRRequest
//	AtomicWrite(id uint64, remote uint64, rkey uint32, value [8]byte) WRRequest
//	Flush(id uint64, remote uint64, rkey uint32, length uint64, placement uint8, level uint8) WRRequest
//	LocalInv(id uint64, rkey uint32) WRRequest
//	BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) WRRequest
//
// Man: ibv_wr_post(3)
type WRProgram = wq.WRProgram

// WRRequest is a request in a [WRProgram]. It is valid until Reset.
//
// Methods, which go doc rdma/internal/wq.WRRequest explains:
//
//	SGE(address uint64, length uint32, lkey uint32) WRRequest
//	Add(s ibv.SGE) WRRequest
//	Inline(data []byte) WRRequest
//	Flags(f ibv.SendFlags) WRRequest
//	Signaled() WRRequest
//	Index() int
//	UD(ah ibv.Ptr[ibv.AH], qpn uint32, qkey uint32) WRRequest
//	XRC(srqn uint32) WRRequest
//	SetID(id uint64)
//	SetFlags(flags ibv.SendFlags)
//	Renew(id uint64, flags ibv.SendFlags, remote uint64, rkey uint32)
//	SetFlush(length uint64, placement uint8)
//	SetValue(value [8]byte)
//	SetRemote(remote uint64, rkey uint32)
//	SetSGE(address uint64, length uint32, lkey uint32)
type WRRequest = wq.WRRequest

// NewWRProgram creates an empty program for a queue pair, which has to outlive it; see [QP.NewWRProgram] for that of an
// object.
func NewWRProgram(qp *ibv.QPEx) *WRProgram { return wq.NewWRProgram(qp) }

// PollProgram polls an extended completion queue: a region from ibv_start_poll to ibv_end_poll, which runs as one call;
// see [CQ.PollProgram].
//
// Methods, which go doc rdma/internal/wq.PollProgram explains:
//
//	String() string
//	Poll() ([]Completion, error)
//	PollOn(stack *runtime.Stack) ([]Completion, error)
//	Retire(send *SendQueue, recv *RecvQueue)
//	Close() error
//
// Man: ibv_create_cq_ex(3)
type PollProgram = wq.PollProgram

// Completion holds what a [PollProgram] reads of a completion.
//
// Fields, which go doc rdma/internal/wq.Completion explains:
//
//	WRID uint64
//	Status ibv.WCStatus
//	Opcode ibv.WCOpcode
//	VendorErr uint32
//	Flags ibv.WCFlags
//	ByteLen uint32
//	Imm ibv.BE32
//	QPNum uint32
//	SrcQP uint32
//	SLID uint32
//	SL uint8
//	PathBits uint8
//	CVLAN uint16
//	FlowTag uint32
//	Timestamp uint64
//	Wallclock uint64
//	TM ibv.WCTMInfo
//
// Methods, which go doc rdma/internal/wq.Completion explains:
//
//	String() string
//	MarshalJSON() ([]byte, error)
//	UnmarshalJSON(text []byte) error
type Completion = wq.Completion

// NewPollProgram creates a program that reads up to n completions of a queue, which has to outlive it. flags select the
// values to read; the queue must have been created with them. Of the options, Way and Providers have an effect.
func NewPollProgram(cq *ibv.CQEx, n int, flags ibv.CreateCQWCFlags, o QueueOptions) (*PollProgram, error) {
	return wq.NewPollProgram(cq, n, flags, o)
}

// PostError says why a list was not posted, or only a part of it. errors.Is finds Errno and Err in it, and errors.As a
// [VerbError] with the same errno. Index is the request that failed, from the start of the batch: those before it were
// posted. With -1 and a Reason none was posted; with -1 and no Reason all may have been, or none.
//
// Fields, which go doc rdma/internal/wq.PostError explains:
//
//	Verb string
//	QPNum uint32
//	QPType ibv.QPType
//	Index int
//	WRID uint64
//	Errno runtime.Errno
//	Reason string
//	Err error
//
// Methods, which go doc rdma/internal/wq.PostError explains:
//
//	Error() string
//	Is(target error) bool
//	As(target any) bool
//	Unwrap() error
type PostError = wq.PostError

// CompletionError says that a work request failed, what the status means, and which causes are likely. errors.As finds
// it. In JSON it has the members of a failed [ibv.WC].
//
// Fields, which go doc rdma/internal/wq.CompletionError explains:
//
//	WRID uint64
//	QPNum uint32
//	Status ibv.WCStatus
//	VendorErr uint32
//
// Methods, which go doc rdma/internal/wq.CompletionError explains:
//
//	Error() string
//	Is(target error) bool
//
// Man: ibv_poll_cq(3)
type CompletionError = wq.CompletionError

// CompletionErr returns nil for a successful completion, and a [*CompletionError] for any other.
func CompletionErr(wc *ibv.WC) error { return wq.CompletionErr(wc) }

// Datagram splits a completed receive of a UD queue pair. buffer is the posted memory, in one piece from its first
// byte, and wc the completion. payload is the part of buffer with the message. grh is the header in front of it, or nil
// if the completion says that there is none; the bytes mean nothing then. Neither is a copy.
//
// Man: ibv_poll_cq(3)
func Datagram(wc *ibv.WC, buffer []byte) (payload []byte, grh *ibv.GRH, err error) {
	return wq.Datagram(wc, buffer)
}
