// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package driver

import (
	"bytes"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

type noBackend struct{}

func (noBackend) Function(string, string) runtime.Func { return nil }
func (noBackend) String() string                       { return "none" }

// partial is a Kernel that fills in the first bytes of a command's answer.
type partial struct {
	Kernel
	fill int
}

func (k *partial) Ioctl(_ int32, _ uintptr, command unsafe.Pointer) syscall.Errno {
	b := (*buffer)(command)
	for _, a := range b.attrs[:b.header.NumAttrs] {
		if a.AttrID == uint16(uapi.UVERBS_ATTR_CORE_OUT) {
			copy(unsafe.Slice(ibv.Ptr[byte](*a.Data()).Deref(), a.Len), bytes.Repeat([]byte{0xff}, k.fill))
		}
	}
	return 0
}

// TestAnswersAreCleared: bytes of an answer that the kernel does not fill in are 0, also in a buffer that an earlier
// command has filled.
func TestAnswersAreCleared(t *testing.T) {
	space, err := runtime.NewSpace(noBackend{})
	require.NoError(t, err)
	k := &partial{fill: 64}
	f := &File{Kernel: k, Commands: &Commands{Space: space}}
	for _, fill := range []int{64, 8} {
		k.fill = fill
		out := make([]byte, 64)
		require.Zero(t, f.Write(uapi.IB_USER_VERBS_CMD_QUERY_DEVICE, make([]byte, 16), out, nil, nil))
		want := make([]byte, 64)
		copy(want, bytes.Repeat([]byte{0xff}, fill))
		assert.Equal(t, want, out)
	}
	require.Len(t, f.Commands.free, 1)
}
