// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// TestUnmappedMemory: unmapped memory causes a panic in the caller.
func TestUnmappedMemory(t *testing.T) {
	b, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(b)) }()
	removed := []mem.Segment{{Base: mem.AddressOf(&b[0]), Length: 100}}
	assert.False(t, mem.Try(func() {
		AppendRequest(new(packetList), &message.Request{Transport: ibv.QPT_RC, Opcode: ibv.WR_SEND, Payload: removed})
	}))
	assert.False(t, mem.Try(func() {
		AppendAnswer(new(packetList), &message.Answer{Transport: ibv.QPT_RC, Kind: message.ReadData, Data: removed})
	}))
}
