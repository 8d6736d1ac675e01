// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// tokenBytes is the size of a token. Its text has 88 hex digits.
const tokenBytes = 44

// transportRC is the transport of reliable connections.
const transportRC = 1

// token describes a queue pair and memory. Encoded integers are little-endian, without padding.
type token struct {
	transport uint8
	qpn       uint32
	gid       ibv.GID
	rkey      uint32
	address   uint64
	length    uint64
	port      uint8
	lid       uint16
}

var errToken = errors.New("s3rdma: invalid token")

func (t token) String() string {
	b := make([]byte, 0, tokenBytes)
	b = append(b, t.transport)
	b = binary.LittleEndian.AppendUint32(b, t.qpn)
	b = append(b, t.gid.Raw()[:]...)
	b = binary.LittleEndian.AppendUint32(b, t.rkey)
	b = binary.LittleEndian.AppendUint64(b, t.address)
	b = binary.LittleEndian.AppendUint64(b, t.length)
	b = append(b, t.port)
	b = binary.LittleEndian.AppendUint16(b, t.lid)
	return hex.EncodeToString(b)
}

var errTransport = failed(http.StatusNotImplemented, "protocol", "unsupported transport in token")

// parseDirect parses the token of a direct request, in cuObject's or hipObject's format. In hipObject's format, an
// address and a size may follow, and dynamic connections return errTransport.
func parseDirect(s string) (token, error) {
	s = strings.TrimSuffix(s, ";")
	head, rest, more := strings.Cut(s, ":")
	switch {
	case more && len(head) == dynamicWidths[0]:
		t, err := parseDynamic(s)
		if err != nil {
			return token{}, malformed(err)
		}
		return t, nil
	case len(head) == 2*tokenBytes && strings.HasPrefix(head, "00"):
		return token{}, errTransport
	}
	t, err := parseToken(head)
	if err != nil {
		return token{}, malformed(err)
	}
	if more {
		h := http.Header{}
		address, size, _ := strings.Cut(rest, ":")
		h.Set(headerAddress, address)
		h.Set(headerSize, size)
		if t.address, err = hexHeader(h, headerAddress, 16); err == nil {
			t.length, err = hexHeader(h, headerSize, 16)
		}
	}
	if err != nil || t.qpn == 0 || t.length == 0 {
		return token{}, malformed(errToken)
	}
	return t, nil
}

// parseToken parses a token of a reliable connection. It returns errTransport for a token of dynamic connections. The
// zero token is valid and means that the peer is on the same device.
func parseToken(s string) (t token, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != tokenBytes {
		return token{}, errToken
	}
	t.transport = b[0]
	t.qpn = binary.LittleEndian.Uint32(b[1:])
	copy(t.gid.Raw()[:], b[5:21])
	t.rkey = binary.LittleEndian.Uint32(b[21:])
	t.address = binary.LittleEndian.Uint64(b[25:])
	t.length = binary.LittleEndian.Uint64(b[33:])
	t.port = b[41]
	t.lid = binary.LittleEndian.Uint16(b[42:])
	if t == (token{}) {
		return t, nil
	}
	if t.transport == transportDC {
		return token{}, errTransport
	}
	if t.transport != transportRC || t.qpn > 0xffffff {
		return token{}, errToken
	}
	return t, nil
}
