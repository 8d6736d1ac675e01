// SPDX-License-Identifier: BSD-2-Clause

// Package rxe tests the generated packages and the runtime on a real kernel with Soft-RoCE, in a guest:
//
//	go run ./conformance/vm/cmd/vmtest -- ./conformance/vm/rxe
package rxe

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// TestSend sends a message from one queue pair of the device to another. It is posted with the generated function, and
// with each way to call the slot.
func TestSend(t *testing.T) {
	r := testbed.Open(t)
	pair := r.Pair(ibv.QPT_RC)
	from, to := r.Buffer(4096, ibv.ACCESS_LOCAL_WRITE), r.Buffer(4096, ibv.ACCESS_LOCAL_WRITE)
	slot := uintptr(pair.A.Context.Deref().Ops.PostSend)
	post := map[string]func(*testbed.List) error{
		"function": func(l *testbed.List) error { _, err := l.Post(pair.A); return err },
	}
	for _, variant := range []runtime.Way{runtime.Blocking, runtime.System} {
		post[variant.String()] = func(l *testbed.List) error {
			wr, bad := l.Arguments()
			return number(variant.Call3(slot, address(pair.A), wr, bad))
		}
	}
	for name, post := range post {
		text := bytes.Repeat([]byte("sent by "+name+" "), 20)
		copy(from.Bytes, text)
		clear(to.Bytes)
		r.Recv(pair.B, 7, to.SGE(16, 2048))
		l := r.Sends(1)
		l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND_WITH_IMM, ibv.SEND_SIGNALED, from.SGE(0, len(text))
		*l.WRs[0].ImmData() = ibv.ToBE32(0x01020304)
		require.NoError(t, post(l), name)
		sent, received := r.Completion(pair.ASend), r.Completion(pair.BRecv)
		assert.Equal(t, ibv.WC_SUCCESS, sent.Status, name)
		assert.Equal(t, ibv.WC_SEND, sent.Opcode, name)
		assert.EqualValues(t, 1, sent.WRID, name)
		assert.Equal(t, ibv.WC_SUCCESS, received.Status, name)
		assert.Equal(t, ibv.WC_RECV, received.Opcode, name)
		assert.EqualValues(t, 7, received.WRID, name)
		assert.EqualValues(t, len(text), received.ByteLen, name)
		assert.EqualValues(t, 0x01020304, received.ImmData().Host(), name)
		assert.Equal(t, ibv.WC_WITH_IMM, received.WCFlags&ibv.WC_WITH_IMM, name)
		assert.Equal(t, text, to.Bytes[16:16+len(text)], name)
		assert.Equal(t, make([]byte, 16), to.Bytes[:16], name)
	}
}

func address[T any](v *T) uintptr { return uintptr(unsafe.Pointer(v)) }

func number(result int32) error {
	if result != 0 {
		return fmt.Errorf("the slot returned %d", result)
	}
	return nil
}
