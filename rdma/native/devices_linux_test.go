// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/uapi"
)

// TestAttributes: attributes are parsed as they were built, and malformed ones end the message.
func TestAttributes(t *testing.T) {
	b := attribute(uapi.RDMA_NLDEV_ATTR_DEV_NAME, []byte("rxe0\x00"))
	b = append(b, attribute(uapi.RDMA_NLDEV_ATTR_DEV_INDEX, binary.NativeEndian.AppendUint32(nil, 5))...)
	m := parseAttributes(b)
	assert.Equal(t, "rxe0", cString(m[uapi.RDMA_NLDEV_ATTR_DEV_NAME]))
	assert.EqualValues(t, 5, number(m[uapi.RDMA_NLDEV_ATTR_DEV_INDEX]))
	for n := range len(b) {
		assert.LessOrEqual(t, len(parseAttributes(b[:n])), 2)
	}
	long := attribute(1, nil)
	binary.NativeEndian.PutUint16(long, 200)
	assert.Empty(t, parseAttributes(long))
	short := attribute(1, nil)
	binary.NativeEndian.PutUint16(short, 2) // less than its header
	assert.Empty(t, parseAttributes(short))
	assert.Zero(t, number([]byte{1, 2, 3}))
}

func TestPKeyText(t *testing.T) {
	key, errno := parsePKey([]byte("0xffff\n"))
	assert.Zero(t, errno)
	assert.EqualValues(t, 0xffff, key)
	_, errno = parsePKey([]byte("0x10000\n"))
	assert.NotZero(t, errno)
}
