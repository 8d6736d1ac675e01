// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"fmt"
	"strings"

	header "github.com/goverbs/goverbs/generated/rpma"
)

// The numbers of librpma.h come from its generated package.

// Code is an error code of librpma. It implements error, for errors.Is.
type Code int32

// librpma's error codes: RPMA_E_UNKNOWN and others.
const (
	ErrUnknown          = Code(header.E_UNKNOWN)
	ErrNotSupported     = Code(header.E_NOSUPP)          // a device, peer or region lacks a feature
	ErrProvider         = Code(header.E_PROVIDER)        // a call of libibverbs, librdmacm or the system failed
	ErrNoMemory         = Code(header.E_NOMEM)           // memory could not be allocated
	ErrInvalid          = Code(header.E_INVAL)           // an argument is invalid
	ErrNoCompletion     = Code(header.E_NO_COMPLETION)   // a wait ended without a completion
	ErrNoEvent          = Code(header.E_NO_EVENT)        // a wait ended without an event
	ErrAgain            = Code(header.E_AGAIN)           // the failure is temporary
	ErrSharedChannel    = Code(header.E_SHARED_CHANNEL)  // the completion channel is shared: use Conn.Wait
	ErrNotSharedChannel = Code(header.E_NOT_SHARED_CHNL) // the completion channel is not shared: use CQ.Wait
)

var codeTexts = [...]string{
	"unknown error", "not supported", "the provider failed", "out of memory", "invalid argument", "no completion",
	"no event", "temporary error", "the completion channel is shared", "the completion channel is not shared",
}

// Error returns the meaning of the code.
//
// C: rpma_err_2str
func (c Code) Error() string {
	if i := int(ErrUnknown - c); i >= 0 && i < len(codeTexts) {
		return codeTexts[i]
	}
	return fmt.Sprintf("unknown librpma error %d", int32(c))
}

// Usage is a set of permitted uses of a memory region. A region's descriptor contains these bits.
type Usage uint8

// Usages of a region. SRC means the source of data and DST its destination, whichever side starts the operation.
const (
	ReadSrc         = Usage(header.MR_USAGE_READ_SRC)              // peers read from it
	ReadDst         = Usage(header.MR_USAGE_READ_DST)              // this side reads from peers into it
	WriteSrc        = Usage(header.MR_USAGE_WRITE_SRC)             // this side writes to peers from it
	WriteDst        = Usage(header.MR_USAGE_WRITE_DST)             // peers write to it
	FlushVisibility = Usage(header.MR_USAGE_FLUSH_TYPE_VISIBILITY) // peers flush it for visibility
	FlushPersistent = Usage(header.MR_USAGE_FLUSH_TYPE_PERSISTENT) // peers flush it for persistence
	SendSrc         = Usage(header.MR_USAGE_SEND)                  // contains messages to send
	RecvDst         = Usage(header.MR_USAGE_RECV)                  // receives messages
)

var usageNames = [...]string{"ReadSrc", "ReadDst", "WriteSrc", "WriteDst", "FlushVisibility", "FlushPersistent",
	"SendSrc", "RecvDst"}

// String returns the names of the usages.
func (u Usage) String() string {
	var names []string
	for i, name := range usageNames {
		if u&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "no usage"
	}
	return strings.Join(names, "|")
}

// Flags select when an operation has a completion.
type Flags uint8

const (
	// OnError requests a completion only if the operation fails. A later operation's completion covers a success.
	OnError = Flags(header.F_COMPLETION_ON_ERROR)
	// Always requests a completion.
	Always = Flags(header.F_COMPLETION_ALWAYS)

	onSuccess = Always &^ OnError
)

// FlushType is the guarantee of a flush.
type FlushType uint8

const (
	Persistent = FlushType(header.FLUSH_TYPE_PERSISTENT) // flushed data survives a power failure of the peer
	Visibility = FlushType(header.FLUSH_TYPE_VISIBILITY) // flushed data is visible to the peer's processors
)

// String returns the name of the type.
func (t FlushType) String() string {
	switch t {
	case Persistent:
		return "persistence"
	case Visibility:
		return "visibility"
	}
	return fmt.Sprintf("FlushType(%d)", uint8(t))
}

// usage returns the usage that a region needs for a flush.
func (t FlushType) usage() Usage {
	if t == Persistent {
		return FlushPersistent
	}
	return FlushVisibility
}

// Event is an event of a connection.
type Event int8

const (
	Undefined   = Event(header.CONN_UNDEFINED)
	Established = Event(header.CONN_ESTABLISHED) // operations may be posted
	Closed      = Event(header.CONN_CLOSED)      // one side has disconnected or ended
	Lost        = Event(header.CONN_LOST)        // the device was removed, or establishing the connection failed
	Rejected    = Event(header.CONN_REJECTED)    // the peer has rejected the request
	Unreachable = Event(header.CONN_UNREACHABLE) // the peer does not respond
)

var eventTexts = [...]string{"undefined", "established", "closed", "lost", "rejected", "unreachable"}

// String returns the name of the event.
//
// C: rpma_utils_conn_event_2str
func (e Event) String() string {
	if i := int(e) - int(Undefined); i >= 0 && i < len(eventTexts) {
		return eventTexts[i]
	}
	return fmt.Sprintf("Event(%d)", int8(e))
}

// AtomicWriteAlignment is the required alignment of the offset of an atomic write.
const AtomicWriteAlignment = header.ATOMIC_WRITE_ALIGNMENT

// Defaults of ConnConfig and SRQConfig.
const (
	defaultTimeoutMS = header.DEFAULT_TIMEOUT_MS
	defaultQueueSize = 10
	defaultSRQSize   = 20
)

// Sizes of descriptors.
const (
	MRDescriptorSize         = 21
	PeerConfigDescriptorSize = 1
)

// Bits of device_cap_flags_ex (enum ib_uverbs_device_cap_flags of the kernel's uverbs interface).
const (
	capFlushGlobal     = 1 << 38
	capFlushPersistent = 1 << 39
	capAtomicWrite     = 1 << 40
)
