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
// Methods, whose whole documentation go doc rdma/internal/wq.SendBatch has:
//
//	// Len is the number of requests.
//	Len() int
//	// Cap is the number of requests that there is room for.
//	Cap() int
//	// Err says what there was no room for since the last Reset, or nil.
//	Err() error
//	// String says how full the batch is: "batch of 2 sends, with room for 4".
//	String() string
//	// Close releases the memory.
//	Close() error
//	// Reset makes the batch empty.
//	Reset()
//	// Fill replaces the requests of the batch by n requests, and returns them and their entries to be written in
//	// place.
//	Fill(n int) (wrs []ibv.SendWR, sges []ibv.SGE)
//	// WR is request i, to patch what changes from post to post.
//	WR(i int) *ibv.SendWR
//	// WRs returns all requests, to change fields in a loop between posts.
//	WRs() []ibv.SendWR
//	// SGEs returns the entries of request i, to change them between posts.
//	SGEs(i int) []ibv.SGE
//	// Send appends IBV_WR_SEND.
//	Send(id uint64) SendRequest
//	// Driver appends IBV_WR_DRIVER1, an operation of the provider.
//	Driver(id uint64) SendRequest
//	// SendImm appends IBV_WR_SEND_WITH_IMM.
//	SendImm(id uint64, imm ibv.BE32) SendRequest
//	// SendInv appends IBV_WR_SEND_WITH_INV, which invalidates a key of the receiver.
//	SendInv(id uint64, rkey uint32) SendRequest
//	// LocalInv appends IBV_WR_LOCAL_INV, which invalidates a local key.
//	LocalInv(id uint64, rkey uint32) SendRequest
//	// Write appends IBV_WR_RDMA_WRITE to remote memory.
//	Write(id uint64, remote uint64, rkey uint32) SendRequest
//	// Read appends IBV_WR_RDMA_READ from remote memory.
//	Read(id uint64, remote uint64, rkey uint32) SendRequest
//	// WriteImm appends IBV_WR_RDMA_WRITE_WITH_IMM to remote memory.
//	WriteImm(id uint64, remote uint64, rkey uint32, imm ibv.BE32) SendRequest
//	// CompareSwap appends IBV_WR_ATOMIC_CMP_AND_SWP of 8 remote bytes, in the byte order of the machine.
//	CompareSwap(id uint64, remote uint64, rkey uint32, compare uint64, swap uint64) SendRequest
//	// FetchAdd appends IBV_WR_ATOMIC_FETCH_AND_ADD to 8 remote bytes, in the byte order of the machine.
//	FetchAdd(id uint64, remote uint64, rkey uint32, add uint64) SendRequest
//	// BindMW appends IBV_WR_BIND_MW of a memory window of type 2 to a memory region, under a new key.
//	BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) SendRequest
//	// TSO appends IBV_WR_TSO: the device sends the entries in segments of mss bytes, each behind a copy of the
//	// header.
//	TSO(id uint64, header []byte, mss uint16) SendRequest
type SendBatch = wq.SendBatch

// SendRequest is a work request in a [SendBatch]; its methods set everything but the operation. It is valid until
// Reset.
//
// Methods, whose whole documentation go doc rdma/internal/wq.SendRequest has:
//
//	// SGE appends an entry: length bytes at an address, under a local key.
//	SGE(address uint64, length uint32, lkey uint32) SendRequest
//	// Add appends an entry, as returned by Region.SGE of package rdma.
//	Add(s ibv.SGE) SendRequest
//	// Flags adds send flags.
//	Flags(f ibv.SendFlags) SendRequest
//	// Signaled asks for a completion: IBV_SEND_SIGNALED.
//	Signaled() SendRequest
//	// UD sets the destination of a datagram: wr.ud.
//	UD(ah ibv.Ptr[ibv.AH], qpn uint32, qkey uint32) SendRequest
//	// XRC sets the shared receive queue that a message of an XRC_SEND queue pair goes to: qp_type.xrc.
//	XRC(srqn uint32) SendRequest
//	// Inline appends an entry with a copy of the bytes, which C reads during the post, and sets IBV_SEND_INLINE: the
//	// memory needs no key.
//	Inline(data []byte) SendRequest
//	// Index is the request's index in its batch.
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
// Methods, whose whole documentation go doc rdma/internal/wq.RecvBatch has:
//
//	// Len is the number of requests.
//	Len() int
//	// Cap is the number of requests that there is room for.
//	Cap() int
//	// Err says what there was no room for since the last Reset, or nil.
//	Err() error
//	// String says how full the batch is: "batch of 2 receives, with room for 4".
//	String() string
//	// Close releases the memory.
//	Close() error
//	// Reset makes the batch empty.
//	Reset()
//	// WR is request i, to patch what changes from post to post.
//	WR(i int) *ibv.RecvWR
//	// WRs returns all requests, to change fields in a loop between posts.
//	WRs() []ibv.RecvWR
//	// SGEs returns the entries of request i, to change them between posts.
//	SGEs(i int) []ibv.SGE
//	// Recv appends a receive work request.
//	Recv(id uint64) RecvRequest
type RecvBatch = wq.RecvBatch

// RecvRequest is a work request in a [RecvBatch]. It is valid until Reset.
//
// Methods, whose whole documentation go doc rdma/internal/wq.RecvRequest has:
//
//	// SGE appends an entry: length bytes at an address, under a local key.
//	SGE(address uint64, length uint32, lkey uint32) RecvRequest
//	// Add appends an entry, as returned by Region.SGE of package rdma.
//	Add(s ibv.SGE) RecvRequest
//	// Index is the request's index in its batch.
//	Index() int
type RecvRequest = wq.RecvRequest

// NewRecvBatch creates an empty batch with room for requests of a number of entries each.
func NewRecvBatch(requests, sges int) (*RecvBatch, error) { return wq.NewRecvBatch(requests, sges) }

// TagBatch is a chain of operations on the tag list of an [SRQ] of type IBV_SRQT_TM, with their scatter entries, for
// [SRQ.PostTags]:
//
//	b.AddTag(id, recvID, tag, mask).SGE(address, length, lkey).Signaled()
//
// Methods, whose whole documentation go doc rdma/internal/wq.TagBatch has:
//
//	// String says how full the batch is: "batch of 2 operations, with room for 4".
//	String() string
//	// Close releases the memory.
//	Close() error
//	// Len is the number of operations.
//	Len() int
//	// Cap is the number of operations that there is room for.
//	Cap() int
//	// Reset empties the batch.
//	Reset()
//	// Err says what the batch had no room for since the last Reset, or returns nil.
//	Err() error
//	// AddTag appends IBV_WR_TAG_ADD: the next message whose tag, under the mask, is tag goes to the entries that
//	// follow, and its completion has recvID.
//	AddTag(id uint64, recvID uint64, tag uint64, mask uint64) TagRequest
//	// DelTag appends IBV_WR_TAG_DEL of a tag by its handle.
//	DelTag(id uint64, handle uint32) TagRequest
//	// Sync appends IBV_WR_TAG_SYNC.
//	Sync(id uint64, unexpected uint32) TagRequest
//
// Man: ibv_post_srq_ops(3)
type TagBatch = wq.TagBatch

// TagRequest is an operation in a [TagBatch]. It is valid until Reset.
//
// Methods, whose whole documentation go doc rdma/internal/wq.TagRequest has:
//
//	// SGE appends an entry: length bytes at an address, under a local key.
//	SGE(address uint64, length uint32, lkey uint32) TagRequest
//	// Add appends an entry, as returned by Region.SGE of package rdma.
//	Add(s ibv.SGE) TagRequest
//	// Index is the operation's index in its batch.
//	Index() int
//	// Signaled asks for a completion of the operation, in the queue's own completion queue: IBV_OPS_SIGNALED.
//	Signaled() TagRequest
//	// Unexpected tells the device, with an operation of any kind, how many unexpected messages the program has
//	// handled: IBV_OPS_TM_SYNC.
//	Unexpected(n uint32) TagRequest
//	// Handle returns the handle of an added tag for DelTag.
//	Handle() uint32
type TagRequest = wq.TagRequest

// NewTagBatch creates an empty batch with room for operations of a number of entries each.
func NewTagBatch(operations, sges int) (*TagBatch, error) { return wq.NewTagBatch(operations, sges) }

// WRProgram is work that is posted through an extended queue pair: a region from ibv_wr_start to ibv_wr_complete, which
// runs as one call. Build it once, run it any number of times with [QP.PostProgram], and change fields in between:
//
//	p.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// Methods, whose whole documentation go doc rdma/internal/wq.WRProgram has:
//
//	// String names the queue pair and counts the requests: "program of QP 0x11 (RC) with 2 work requests".
//	String() string
//	// Send appends ibv_wr_send.
//	Send(id uint64) WRRequest
//	// SendImm appends ibv_wr_send_imm.
//	SendImm(id uint64, imm ibv.BE32) WRRequest
//	// SendInv appends ibv_wr_send_inv.
//	SendInv(id uint64, rkey uint32) WRRequest
//	// TSO appends ibv_wr_send_tso.
//	TSO(id uint64, header []byte, mss uint16) WRRequest
//	// Write appends ibv_wr_rdma_write.
//	Write(id uint64, remote uint64, rkey uint32) WRRequest
//	// WriteImm appends ibv_wr_rdma_write_imm.
//	WriteImm(id uint64, remote uint64, rkey uint32, imm ibv.BE32) WRRequest
//	// Read appends ibv_wr_rdma_read.
//	Read(id uint64, remote uint64, rkey uint32) WRRequest
//	// CompareSwap appends ibv_wr_atomic_cmp_swp of 8 remote bytes, in the byte order of the machine.
//	CompareSwap(id uint64, remote uint64, rkey uint32, compare uint64, swap uint64) WRRequest
//	// FetchAdd appends ibv_wr_atomic_fetch_add to 8 remote bytes, in the byte order of the machine.
//	FetchAdd(id uint64, remote uint64, rkey uint32, add uint64) WRRequest
//	// AtomicWrite appends ibv_wr_atomic_write of 8 bytes, as they are in memory.
//	AtomicWrite(id uint64, remote uint64, rkey uint32, value [8]byte) WRRequest
//	// Flush appends ibv_wr_flush of remote memory, with values of enum ibv_placement_type and enum
//	// ibv_selectivity_level.
//	Flush(id uint64, remote uint64, rkey uint32, length uint64, placement uint8, level uint8) WRRequest
//	// LocalInv appends ibv_wr_local_inv.
//	LocalInv(id uint64, rkey uint32) WRRequest
//	// BindMW appends ibv_wr_bind_mw.
//	BindMW(id uint64, mw ibv.Ptr[ibv.MW], rkey uint32, info ibv.MWBindInfo) WRRequest
//	// Reset empties the program.
//	Reset()
//	// Len is the number of requests.
//	Len() int
//	// Err says what is wrong with the program so far, or returns nil.
//	Err() error
//
// Man: ibv_wr_post(3)
type WRProgram = wq.WRProgram

// WRRequest is a request in a [WRProgram]. It is valid until Reset.
//
// Methods, whose whole documentation go doc rdma/internal/wq.WRRequest has:
//
//	// SGE appends an entry: length bytes at an address, under a local key.
//	SGE(address uint64, length uint32, lkey uint32) WRRequest
//	// Add appends an entry, as returned by Region.SGE of package rdma.
//	Add(s ibv.SGE) WRRequest
//	// Inline appends an entry with a copy of the bytes, which C reads during the post: the memory needs no key.
//	Inline(data []byte) WRRequest
//	// Flags adds send flags.
//	Flags(f ibv.SendFlags) WRRequest
//	// Signaled asks for a completion: IBV_SEND_SIGNALED.
//	Signaled() WRRequest
//	// Index is the request's index in its program.
//	Index() int
//	// UD sets the destination of a datagram: ibv_wr_set_ud_addr.
//	UD(ah ibv.Ptr[ibv.AH], qpn uint32, qkey uint32) WRRequest
//	// XRC sets the shared receive queue that a message goes to: ibv_wr_set_xrc_srqn.
//	XRC(srqn uint32) WRRequest
//	// SetID changes wr_id.
//	SetID(id uint64)
//	// SetFlags changes the send flags.
//	SetFlags(flags ibv.SendFlags)
//	// Renew is SetID, SetFlags and SetRemote, in one call: for a request that is posted again and again.
//	Renew(id uint64, flags ibv.SendFlags, remote uint64, rkey uint32)
//	// SetFlush changes the number of bytes and the placement of a flush.
//	SetFlush(length uint64, placement uint8)
//	// SetValue changes the 8 bytes of an atomic write.
//	SetValue(value [8]byte)
//	// SetRemote changes the remote address and key of a read, a write, an atomic operation or a flush.
//	SetRemote(remote uint64, rkey uint32)
//	// SetSGE changes the only entry of a request, which SGE or Add appended.
//	SetSGE(address uint64, length uint32, lkey uint32)
type WRRequest = wq.WRRequest

// NewWRProgram creates an empty program for a queue pair, which has to outlive it; see [QP.NewWRProgram] for that of an
// object.
func NewWRProgram(qp *ibv.QPEx) *WRProgram { return wq.NewWRProgram(qp) }

// PollProgram polls an extended completion queue: a region from ibv_start_poll to ibv_end_poll, which runs as one call;
// see [CQ.PollProgram].
//
// Methods, whose whole documentation go doc rdma/internal/wq.PollProgram has:
//
//	// String says how much a poll takes: "program that polls up to 32 completions".
//	String() string
//	// Poll reads completions: none, or up to the program's number.
//	Poll() ([]Completion, error)
//	// Retire gives back the slots of the send queue for completions, in the order in which they were polled.
//	Retire(send *SendQueue, recv *RecvQueue)
//	// Close unmaps the memory.
//	Close() error
//
// Man: ibv_create_cq_ex(3)
type PollProgram = wq.PollProgram

// Completion holds what a [PollProgram] reads of a completion.
//
// Fields:
//
//	WRID      uint64
//	Status    ibv.WCStatus
//	Opcode    ibv.WCOpcode
//	VendorErr uint32
//	Flags     ibv.WCFlags
//	ByteLen   uint32   // bytes of the message
//	Imm       ibv.BE32 // immediate data as the sender set it; if Flags has WC_WITH_INV, bits of the invalidated key
//	QPNum     uint32
//	SrcQP     uint32
//	SLID      uint32
//	SL        uint8
//	PathBits  uint8
//	CVLAN     uint16
//	FlowTag   uint32
//	Timestamp uint64 // in cycles of the device
//	Wallclock uint64 // nanoseconds of wall clock
//	TM        ibv.WCTMInfo
//
// Methods, whose whole documentation go doc rdma/internal/wq.Completion has:
//
//	// String describes the completion as that of ibv.WC does: "QP 0x11: WR id 0x2a: IBV_WC_RECV, 64 bytes".
//	String() string
//	// MarshalJSON is an object like that of ibv.WC, without what was not asked for, and without what is 0.
//	MarshalJSON() ([]byte, error)
//	// UnmarshalJSON reads what MarshalJSON writes.
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
// Fields:
//
//	Verb   string     // "ibv_post_send"
//	QPNum  uint32     // number of the queue pair or work queue; handle of a shared receive queue
//	QPType ibv.QPType // 0 for a shared receive queue and a work queue
//	// Index is the work request that failed, counted from the start of the batch. The requests before it were posted;
//	// it and those after it were not. -1: none was posted, for the Reason; or if that is "", C failed and did not say
//	// where: all may have been posted, or none.
//	Index  int
//	WRID   uint64        // of that work request
//	Errno  runtime.Errno // C's errno, or that of a check: EINVAL, or ENOMEM if slots are missing
//	Reason string        // the broken rule and what would be valid; "" if C failed
//	Err    error         // that of the batch or the program, if that is to blame, or nil
//
// Methods, whose whole documentation go doc rdma/internal/wq.PostError has:
//
//	// Error returns the verb, the queue, the request and the reason.
//	Error() string
//	// Is reports runtime.ErrNotSupported for errnos that say so, as the error of a call does.
//	Is(target error) bool
//	// As gives the error as a VerbError, for programs that treat all verbs alike.
//	As(target any) bool
//	// Unwrap returns Errno.
//	Unwrap() error
type PostError = wq.PostError

// CompletionError says that a work request failed, what the status means, and which causes are likely. errors.As finds
// it. In JSON it has the members of a failed [ibv.WC].
//
// Fields:
//
//	WRID      uint64
//	QPNum     uint32
//	Status    ibv.WCStatus
//	VendorErr uint32 // a further code of the provider; its documents explain it
//
// Methods, whose whole documentation go doc rdma/internal/wq.CompletionError has:
//
//	// Error returns the status by name and number, its meaning and the likely causes.
//	Error() string
//	// Is reports whether target is a CompletionError with the same status: errors.Is(err, &CompletionError{Status:
//	// ibv.WC_WR_FLUSH_ERR}).
//	Is(target error) bool
//
// Man: ibv_poll_cq(3)
type CompletionError = wq.CompletionError

// CompletionErr returns nil for a successful completion, and a [*CompletionError] for any other.
func CompletionErr(wc *ibv.WC) error { return wq.CompletionErr(wc) }
