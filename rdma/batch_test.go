package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

type nobody struct{}

func (nobody) Function(string, string) runtime.Func { return nil }

// space is for functions that stand in place of a device's.
var space = func() *runtime.Space {
	s, err := runtime.NewSpace(nobody{})
	if err != nil {
		panic(err)
	}
	return s
}()

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
