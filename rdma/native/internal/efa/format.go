// SPDX-License-Identifier: BSD-2-Clause

package efa

import (
	"structs"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// The formats of the queues. Numbers are little-endian, like both architectures of this driver.

// operation is the kind of a request.
type operation uint8

const (
	opSend operation = iota
	opRead
	opWrite
	opMask operation = 0xf
)

// Flags of the second byte of a send request, above its operation.
const (
	hasImm     = 1 << 4
	hasInline  = 1 << 5
	isMetaData = 1 << 7 // the first part of a request
)

// Flags of its third byte.
const (
	sendPhase = 1 << iota
	_
	sendFirst
	sendLast
	sendSignaled
)

// sendHead is the first part of a send request. Buffers, or inline data, follow it.
type sendHead struct {
	_         structs.HostLayout
	id        uint16
	operation uint8
	flags     uint8
	qpn       uint16
	length    uint16 // bytes of inline data, or buffers
	imm       uint32
	ah        uint16
	hints     uint8
	_         uint8
	qkey      uint32
	_         [6]uint8
	moreID    [6]uint8
}

// buffer is a local or remote buffer of a send request.
type buffer struct {
	_      structs.HostLayout
	length uint32
	key    uint32
	low    uint32
	high   uint32
}

const (
	keyMask    = 1<<24 - 1 // of local keys
	mostQPN    = 1<<16 - 1
	headSize   = unsafe.Sizeof(sendHead{})
	bufferSize = unsafe.Sizeof(buffer{})
	narrow     = 64 // sizes of send requests
	wide       = 128

	mostBuffers = uint32((narrow - headSize) / bufferSize) // of a request
	mostLocal   = 1                                        // of a read or write
	mostCount   = 1 << 16                                  // requests of a queue, which have numbers of 16 bits
)

// recvBuffer is one buffer of a receive. Those of a receive are adjacent.
type recvBuffer struct {
	_      structs.HostLayout
	low    uint32
	high   uint32
	id     uint16
	length uint16
	key    uint32 // and flags
}

const (
	recvFirst  = 1 << 30
	recvLast   = 1 << 31
	recvSize   = unsafe.Sizeof(recvBuffer{})
	recvLength = 1<<16 - 1 // of a buffer
)

// completion is the part of a completion that all have.
type completion struct {
	_      structs.HostLayout
	id     uint16
	status uint8
	flags  uint8
	qpn    uint16
}

// sendCompletion is the completion of a send.
type sendCompletion struct {
	completion
	moreID [6]uint8
}

// recvCompletion is the completion of a receive. Only those of 32 bytes have the last field.
type recvCompletion struct {
	completion
	length uint16
	ah     uint16
	srcQP  uint16
	imm    uint32
	more   [16]uint8 // of a write: the upper half of the length; of a message: the GID of the sender, if ah is unknownAH
}

const (
	shortCompletion = unsafe.Offsetof(recvCompletion{}.more)
	longCompletion  = unsafe.Sizeof(recvCompletion{})
	unknownAH       = 0xffff
)

// Flags of a completion.
const (
	donePhase       = 1
	doneSend        = 1 << 1
	doneRecv        = 2 << 1
	doneQueue       = 3 << 1 // the mask of the two
	doneImm         = 1 << 3
	doneOperationAt = 4
	doneOperation   = 7
	doneUnsolicited = 1 << 7
)

// statuses are the results of requests. Others are ibv.WC_GENERAL_ERR.
var statuses = [...]ibv.WCStatus{0: ibv.WC_SUCCESS, 1: ibv.WC_WR_FLUSH_ERR, 2: ibv.WC_LOC_QP_OP_ERR,
	3: ibv.WC_LOC_QP_OP_ERR, 4: ibv.WC_LOC_QP_OP_ERR, 5: ibv.WC_LOC_PROT_ERR, 6: ibv.WC_LOC_LEN_ERR,
	7: ibv.WC_REM_ACCESS_ERR, 8: ibv.WC_REM_ABORT_ERR, 9: ibv.WC_REM_INV_RD_REQ_ERR, 10: ibv.WC_RNR_RETRY_EXC_ERR,
	11: ibv.WC_REM_INV_REQ_ERR, 12: ibv.WC_BAD_RESP_ERR, 13: ibv.WC_RESP_TIMEOUT_ERR, 14: ibv.WC_REM_OP_ERR,
	15: ibv.WC_RESP_TIMEOUT_ERR, 16: ibv.WC_GENERAL_ERR, 17: ibv.WC_GENERAL_ERR, 18: ibv.WC_REM_INV_REQ_ERR}

func statusOf(code uint8) ibv.WCStatus {
	if int(code) < len(statuses) {
		return statuses[code]
	}
	return ibv.WC_GENERAL_ERR
}

// Parts of the doorbell of a completion queue. The lower half is the number of completions that were read.
const (
	bellArmed    = 1 << 31
	bellEventsAt = 29 // number of events that were read
	bellEvents   = 3
)
