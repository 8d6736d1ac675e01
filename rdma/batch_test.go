// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// polling is a path that finds nothing, and tells of each poll.
type polling func()

func (p polling) Poll(*ibv.CQ, []ibv.WC) int32 { p(); return 0 }
func (polling) Arm(*ibv.CQ, bool) int32        { return 0 }

func (polling) PostSend(*ibv.QP, *ibv.SendWR, *ibv.Ptr[ibv.SendWR]) int32     { return 0 }
func (polling) PostRecv(*ibv.QP, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32     { return 0 }
func (polling) PostSRQRecv(*ibv.SRQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32 { return 0 }
func (polling) PostWQRecv(*ibv.WQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32   { return 0 }

func sendBatch(t testing.TB, requests, sges, inline int) *SendBatch {
	b, err := NewSendBatch(requests, sges, inline)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func recvBatch(t testing.TB, requests, sges int) *RecvBatch {
	b, err := NewRecvBatch(requests, sges)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}
