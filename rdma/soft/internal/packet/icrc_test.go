// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
)

var (
	alice4 = Endpoint{gid4(192, 0, 2, 1), 50000}
	bob4   = Endpoint{gid4(192, 0, 2, 2), Port}
	alice6 = Endpoint{[16]byte{0x20, 1, 0xd, 0xb8, 15: 1}, 50000}
	bob6   = Endpoint{[16]byte{0x20, 1, 0xd, 0xb8, 15: 2}, Port}
)

// TestSealed: the ICRC of a sealed packet is valid, even if its Identification is not the assumed one, and invalid if
// any covered byte is changed.
func TestSealed(t *testing.T) {
	for _, n := range []int{0, 1, 4, 1024, 4096} {
		m := example(ibv.QPT_XRC_SEND, ibv.WR_RDMA_WRITE_WITH_IMM, pattern(n))
		m.MTU = 4096
		var out packetList
		AppendRequest(&out, m)
		p := out[0]
		for _, id := range []uint16{0, 1, 0x1234, 0xffff} {
			Seal(p, &alice4, &bob4, id)
			for _, assumed := range []uint16{id, 0, 0x4321} {
				got, ok := Check(p, &alice4, &bob4, assumed)
				assert.True(t, ok, "%d bytes, %#x", n, id)
				assert.Equal(t, id, got)
			}
		}
		for _, c := range [][2]*Endpoint{{&alice4, &bob4}, {&alice6, &bob6}} {
			Seal(p, c[0], c[1], 7)
			for i := range p {
				for _, bit := range []byte{1, 0x80, 0xff} {
					p[i] ^= bit
					_, ok := Check(p, c[0], c[1], 7)
					assert.Equal(t, i == 4, ok, "byte %d of %d", i, len(p)) // switches may change byte 4: FECN, BECN
					p[i] ^= bit
				}
			}
			other := *c[0]
			other.Port++
			_, ok := Check(p, &other, c[1], 7)
			assert.False(t, ok)
			other = *c[1]
			other.GID[15]++
			_, ok = Check(p, c[0], &other, 7)
			assert.False(t, ok)
		}
	}
}

// TestSealedFlush: the ICRC of a FLUSH may cover the packet twice or once. Its Identification is found in both cases,
// even for the longest packet.
func TestSealedFlush(t *testing.T) {
	for _, n := range []int{36, MaxSize} {
		p := make([]byte, n)
		h := bth{opcode: flush, pkey: 1, qpn: 2}
		h.put(p)
		for _, twice := range []bool{false, true} {
			binary.LittleEndian.PutUint32(p[n-icrcSize:], icrc(p, &alice4, &bob4, 0x1234, twice))
			for _, assumed := range []uint16{0x1234, 0} {
				got, ok := Check(p, &alice4, &bob4, assumed)
				assert.True(t, ok)
				assert.EqualValues(t, 0x1234, got)
			}
		}
		_, ok := Check(p, &alice4, &alice4, 0)
		assert.False(t, ok)
	}
}
