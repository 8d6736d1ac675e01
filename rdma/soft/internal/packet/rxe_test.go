// SPDX-License-Identifier: BSD-2-Clause

package packet_test

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// TestSoftRoCE decodes packets of the kernel's Soft-RoCE, and encodes the same requests to identical packets.
// testdata/rxe.txt holds packets that Linux 6.1 and 6.12 (FLUSH, ATOMIC_WRITE) sent, in hexadecimal, starting with the
// IP header.
func TestSoftRoCE(t *testing.T) {
	b, err := os.ReadFile("testdata/rxe.txt")
	require.NoError(t, err)
	all := strings.Fields(string(b))
	for i, op := range []ibv.WROpcode{
		ibv.WR_SEND, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_CMP_AND_SWP,
		ibv.WR_SEND, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_CMP_AND_SWP,
		ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE,
	} {
		frame, err := hex.DecodeString(all[i])
		require.NoError(t, err)
		variant, size, id := ways[1], 40, uint16(0)
		if frame[0]>>4 == 4 {
			variant, size, id = ways[0], 20, binary.BigEndian.Uint16(frame[4:])
		}
		variant.from.Port = binary.BigEndian.Uint16(frame[size:])
		p := frame[size+8:]
		got, ok := packet.Check(p, &variant.from, &variant.to, 0)
		assert.True(t, ok, "%v over %s", op, variant.name)
		assert.Equal(t, id, got, "%v: the Identification is solved", op)

		m := message.Request{Transport: ibv.QPT_RC, Opcode: op, PKey: 0xffff, DestQP: 0x123456, AckReq: true,
			PSN: binary.BigEndian.Uint32(p[8:]) & 0xffffff, Packets: 1}
		if op != ibv.WR_SEND {
			m.Remote, m.RKey, m.Length = 0x1122334455667788, 0x99aabbcc, 5
		}
		switch op {
		case ibv.WR_SEND, ibv.WR_RDMA_WRITE:
			m.Payload, m.Length = payload(), 5
		case ibv.WR_ATOMIC_FETCH_AND_ADD:
			m.Operand, m.Length = 42, 8
		case ibv.WR_ATOMIC_CMP_AND_SWP:
			m.Operand, m.Swap, m.Length = 42, 7, 8
		case ibv.WR_FLUSH:
			m.Placement, m.Level = uint32(ibv.FLUSH_PERSISTENT), uint32(ibv.FLUSH_MR)
		case ibv.WR_ATOMIC_WRITE:
			m.Operand, m.Length = binary.NativeEndian.Uint64([]byte{1, 2, 3, 4, 5, 6, 7, 8}), 8
		}
		var out show
		packet.AppendRequest(&out, &m)
		packet.Seal(out[0], &variant.from, &variant.to, id)
		assert.Equal(t, hex.EncodeToString(p), hex.EncodeToString(out[0]), "%v over %s", op, variant.name)

		var d packet.Decoder
		kind, reason := d.Decode(p, message.Address{}, message.Address{})
		require.Equal(t, packet.Request, kind, "%v", reason)
		if len(m.Payload) > 0 {
			require.Len(t, d.Request.Payload, 1)
			assert.EqualValues(t, len(content), d.Request.Payload[0].Length)
		}
		m.Payload, d.Request.Payload = nil, nil
		assert.Equal(t, m, d.Request)
	}
}
