// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers and values of hipobj-rc-v2.
const (
	protocolV2  = "hipobj-rc-v2"
	pathPrepare = "/.hipobj-rc/prepare"
	pathReady   = "/.hipobj-rc/ready"
	pathCancel  = "/.hipobj-rc/cancel"

	headerPrefix      = "X-Amz-Rdma-"
	headerProtocol    = headerPrefix + "Protocol"
	headerStatus      = headerPrefix + "Protocol-Status"
	headerOp          = headerPrefix + "Op"
	headerTarget      = headerPrefix + "Target"
	headerSize        = headerPrefix + "Size"
	headerOffset      = headerPrefix + "Offset"
	headerToken       = headerPrefix + "Token"
	headerPSN         = headerPrefix + "Psn"
	headerCookie      = headerPrefix + "Cookie"
	headerReply       = headerPrefix + "Reply"
	headerSession     = headerPrefix + "Session"
	headerQPN         = headerPrefix + "Qpn"
	headerAddress     = headerPrefix + "Mr-Addr"
	headerRKey        = headerPrefix + "Mr-Rkey"
	headerTransferred = headerPrefix + "Bytes-Transferred"
	headerETag        = headerPrefix + "Etag"
	headerVersion     = headerPrefix + "Version-Id"
)

// Our extension: a prepare request contains the headers of the original request, with a prefix. The reply confirms that
// the server replays them.
const (
	headerOriginal = "X-Goverbs-Original-"
	headerQuery    = "X-Goverbs-Query" // query of the original request; the protocol's target is only a path
	headerReplays  = "X-Goverbs-Replay"
)

// Limits of the protocol.
const (
	maxSize         = 1<<31 - 1
	sessionLifetime = 10 * time.Second
	transferTimeout = 30 * time.Second
)

// hexHeader parses a header with at most digits hex digits. Prefixes, signs and spaces are errors.
func hexHeader(h http.Header, name string, digits int) (uint64, error) {
	s := h.Get(name)
	if s == "" || len(s) > digits || strings.Trim(s, "0123456789abcdefABCDEF") != "" {
		return 0, fmt.Errorf("s3rdma: %s: %q is not a hex number of up to %d digits", name, s, digits)
	}
	return strconv.ParseUint(s, 16, 64)
}

// decimalHeader parses a header with a decimal number of at most most.
func decimalHeader(h http.Header, name string, most uint64) (uint64, error) {
	s := h.Get(name)
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil || v > most || s[0] == '+' {
		return 0, fmt.Errorf("s3rdma: %s: %q is not a number from 0 to %d", name, s, most)
	}
	return v, nil
}

// memoryKey has the address and key of a peer's memory, and the number of the queue pair that may access it.
type memoryKey struct {
	qpn     uint32
	address uint64
	rkey    uint32
}

func (k memoryKey) set(h http.Header) {
	h.Set(headerQPN, fmt.Sprintf("%06x", k.qpn))
	h.Set(headerAddress, fmt.Sprintf("%016x", k.address))
	h.Set(headerRKey, fmt.Sprintf("%08x", k.rkey))
}

func memoryKeyOf(h http.Header) (k memoryKey, err error) {
	var v [3]uint64
	for i, name := range []string{headerQPN, headerAddress, headerRKey} {
		if v[i], err = hexHeader(h, name, []int{6, 16, 8}[i]); err != nil {
			return k, err
		}
	}
	return memoryKey{uint32(v[0]), v[1], uint32(v[2])}, nil
}

// request contains the values of a prepare request.
type request struct {
	op     string // GET or PUT
	target string // path from the request line
	size   int
	offset uint64
	client token
	psn    uint32
	cookie uint32
}

func (r *request) set(h http.Header) {
	h.Set(headerProtocol, protocolV2)
	h.Set(headerOp, r.op)
	h.Set(headerTarget, r.target)
	h.Set(headerSize, strconv.Itoa(r.size))
	h.Set(headerOffset, strconv.FormatUint(r.offset, 10))
	h.Set(headerToken, r.client.String())
	h.Set(headerPSN, fmt.Sprintf("%06x", r.psn))
	h.Set(headerCookie, fmt.Sprintf("%08x", r.cookie))
}

func requestOf(h http.Header) (r request, err error) {
	r.op, r.target = h.Get(headerOp), h.Get(headerTarget)
	if r.op != http.MethodGet && r.op != http.MethodPut {
		return r, fmt.Errorf("s3rdma: %s: %q is not GET or PUT", headerOp, r.op)
	}
	if !strings.HasPrefix(r.target, "/") || strings.HasPrefix(r.target, "//") || len(r.target) < 2 {
		return r, fmt.Errorf("s3rdma: %s: %q is not a path", headerTarget, r.target)
	}
	size, err := decimalHeader(h, headerSize, maxSize)
	if err != nil {
		return r, err
	}
	if size == 0 {
		return r, fmt.Errorf("s3rdma: %s: 0 bytes", headerSize)
	}
	r.size = int(size)
	if r.offset, err = decimalHeader(h, headerOffset, 1<<63-1-maxSize); err != nil {
		return r, err
	}
	if r.client, err = parseToken(h.Get(headerToken)); err != nil {
		return r, err
	}
	psn, err := hexHeader(h, headerPSN, 6)
	if err != nil {
		return r, err
	}
	cookie, err := hexHeader(h, headerCookie, 8)
	if err != nil {
		return r, err
	}
	if psn == 0 || cookie == 0 {
		return r, fmt.Errorf("s3rdma: packet sequence number or cookie is 0")
	}
	r.psn, r.cookie = uint32(psn), uint32(cookie)
	return r, nil
}

// reply contains the values of the reply to a prepare request.
type reply struct {
	server token
	psn    uint32
	memory memoryKey
}

// replyOf parses a reply. It returns errDeclined if the server has not accepted the transfer.
func replyOf(h http.Header) (r reply, err error) {
	text, ok := strings.CutPrefix(h.Get(headerReply), "200:")
	if !ok {
		return r, errDeclined
	}
	if r.server, err = parseToken(text); err != nil {
		return r, err
	}
	psn, err := hexHeader(h, headerPSN, 6)
	if err != nil {
		return r, err
	}
	r.psn = uint32(psn)
	r.memory, err = memoryKeyOf(h)
	return r, err
}

// random returns an unpredictable number that is not 0 and has at most the given number of bits.
func random(bits int) uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		if v := binary.NativeEndian.Uint32(b[:]) >> (32 - bits); v != 0 {
			return v
		}
	}
}
