// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/uapi"
)

// TestHeader: the header before a datagram contains IPv4 or IPv6 addresses. One that could be both is IPv4 if the
// checksum says so.
func TestHeader(t *testing.T) {
	var h [grhSize]byte
	_, errno := parseHeader(&h)
	assert.Equal(t, syscall.EPROTONOSUPPORT, errno)

	ip := h[ipv4At:]
	copy(ip, []byte{0x45, 7, 12: 10, 13: 1, 14: 2, 15: 3, 16: 10, 17: 1, 18: 2, 19: 4})
	p, errno := parseHeader(&h)
	assert.Zero(t, errno)
	assert.Equal(t, [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: 3}, *p.route.DGID.Raw())
	assert.EqualValues(t, 7, p.route.TrafficClass)
	own := [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: 4}
	assert.Equal(t, [2]uint64{binary.NativeEndian.Uint64(own[:]), binary.NativeEndian.Uint64(own[8:])}, p.own)
	assert.Equal(t, uapi.IB_UVERBS_GID_TYPE_ROCE_V2, p.kind)

	h[0], h[1], h[3] = 0x61, 0x23, 0x45 // traffic class 0x12, flow label 0x30045
	p, _ = parseHeader(&h)
	assert.EqualValues(t, 0x12, p.route.TrafficClass)
	assert.EqualValues(t, 0x30045, p.route.FlowLabel)
	assert.Equal(t, [16]byte(h[8:24]), *p.route.DGID.Raw())
	h[6] = nextIBA
	p, _ = parseHeader(&h)
	assert.Equal(t, uapi.IB_UVERBS_GID_TYPE_ROCE_V1, p.kind)

	binary.BigEndian.PutUint16(ip[10:], ^checksum(ip))
	p, _ = parseHeader(&h)
	assert.EqualValues(t, 7, p.route.TrafficClass, "the checksum is right")
}
