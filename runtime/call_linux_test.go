package runtime_test

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

var libc = &runtime.Library{Name: "libc", SOName: "libc.so.6"}

func TestErrnoIsOfTheSameCall(t *testing.T) {
	closeFD := &runtime.Function{Library: libc, Name: "close"}
	_, err := closeFD.Exported().MinusOne(uintptr(1 << 20))
	require.ErrorIs(t, err, syscall.EBADF)
	assert.EqualError(t, err, "close: bad file descriptor")
}

func TestMissingSymbol(t *testing.T) {
	f := &runtime.Function{Library: libc, Name: "ibv_reg_mr_ex", Since: "65.0"}
	err := f.Exported().Errno()
	require.ErrorIs(t, err, runtime.ErrNotSupported)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	assert.EqualError(t, err, "ibv_reg_mr_ex: libc.so.6 does not export it (rdma-core has it since 65.0)")
}

func TestBuffer(t *testing.T) {
	f := &runtime.Function{Library: libc, Name: "strlen"}
	text := []byte("verbs\x00")
	n, err := f.Exported().Value(uintptr(unsafe.Pointer(&text[0])))
	require.NoError(t, err)
	assert.EqualValues(t, 5, n)
}
