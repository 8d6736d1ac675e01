// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/uapi"
)

// hostileKernel answers the connection manager's commands with what answer fills in.
type hostileKernel struct {
	*fake
	answer func(number uint32, out []byte) (short int, errno syscall.Errno)
}

// managerFD is a file of the connection manager; fake knows device files only.
const managerFD = 1 << 20

func (k *hostileKernel) Open(path string) (int32, syscall.Errno) {
	if path == managerPath {
		return managerFD, 0
	}
	return k.fake.Open(path)
}

func (k *hostileKernel) Close(fd int32) syscall.Errno {
	if fd == managerFD {
		return 0
	}
	return k.fake.Close(fd)
}

func (k *hostileKernel) Write(_ int32, b []byte) (int, syscall.Errno) {
	h := (*uapi.RDMAUCMCmdHdr)(unsafe.Pointer(&b[0]))
	var out []byte
	if h.Out > 0 {
		field := unsafe.Sizeof(*h)
		if h.Cmd == uapi.RDMA_USER_CM_CMD_CREATE_ID {
			field += unsafe.Offsetof(uapi.RDMAUCMCreateID{}.Response)
		}
		address := *(*uint64)(unsafe.Pointer(&b[field]))
		out = unsafe.Slice(ibv.Ptr[byte](address).Deref(), h.Out)
	}
	short, errno := k.answer(h.Cmd, out)
	return len(b) - short, errno
}

// managed returns a Backend and a synchronous identifier of it.
func managed(t *testing.T, k *hostileKernel) (*Backend, *identifier) {
	b, err := New(k)
	require.NoError(t, err)
	id, errno := b.newID(nil, 0, rdmacm.PS_TCP, 2)
	require.Zero(t, errno)
	return b, id
}

func nothing(uint32, []byte) (int, syscall.Errno) { return 0, 0 }

func TestShortAnswersOfTheConnectionManager(t *testing.T) {
	k := &hostileKernel{fake: newFake(), answer: nothing}
	b, id := managed(t, k)
	k.answer = func(uint32, []byte) (int, syscall.Errno) { return 1, 0 }
	to := uint64(uintptr(must(b.space.Alloc(8))))
	for name, call := range map[string]func() syscall.Errno{
		"rdma_get_cm_event": func() syscall.Errno { return b.getEvent([]uint64{addressOf(id.channel.record), to}) },
		"rdma_listen":       func() syscall.Errno { return id.listen([]uint64{1}) },
		"rdma_destroy_id":   id.destroy,
		"rdma_create_id":    func() syscall.Errno { _, errno := b.newID(nil, 0, rdmacm.PS_TCP, 2); return errno },
	} {
		assert.Equal(t, syscall.EIO, call(), name)
	}
	k.answer = nothing
	assert.Zero(t, id.destroy())
	assert.Empty(t, b.objects)
}

// TestRandomAnswersOfTheConnectionManager calls everything with a kernel whose answers are random, apart from the
// number of events, for which destroying waits.
func TestRandomAnswersOfTheConnectionManager(t *testing.T) {
	k := &hostileKernel{fake: newFake(), answer: nothing}
	b, id := managed(t, k)
	source := rand.NewChaCha8([32]byte{7})
	random := rand.New(source)
	k.answer = func(number uint32, out []byte) (int, syscall.Errno) {
		switch number {
		case uapi.RDMA_USER_CM_CMD_DESTROY_ID, uapi.RDMA_USER_CM_CMD_LEAVE_MCAST, uapi.RDMA_USER_CM_CMD_MIGRATE_ID:
			return 0, 0
		case uapi.RDMA_USER_CM_CMD_GET_EVENT:
			if random.IntN(8) == 0 {
				return 0, syscall.EAGAIN
			}
			source.Read(out)
			e := (*uapi.RDMAUCMEventResp)(unsafe.Pointer(&out[0]))
			e.Event = random.Uint32N(22)
			if random.IntN(4) > 0 {
				e.Uid = addressOf(id.record)
			}
		case uapi.RDMA_USER_CM_CMD_QUERY:
			source.Read(out)
			if r := (*uapi.RDMAUCMQueryAddrResp)(unsafe.Pointer(&out[0])); len(out) == int(unsafe.Sizeof(*r)) {
				r.NodeGUID, r.IBDevIndex = wireGUID(1), 0
			}
		default:
			source.Read(out)
		}
		return 0, 0
	}
	memory := uint64(uintptr(must(b.space.Alloc(512))))
	address := ibv.Ptr[rdmacm.SockaddrIn](memory).Deref()
	events, requests := 0, 0
	for range 20_000 {
		address.SinFamily = []uint16{syscall.AF_INET, syscall.AF_INET6, rdmacm.AF_IB, 99}[random.IntN(4)]
		id.bind([]uint64{memory})
		id.listen([]uint64{4})
		id.queryPaths()
		id.initQPAttr([]uint64{memory, memory + 256})
		b.portOf((*rdmacm.Addr).SrcAddr)([]uint64{addressOf(id.record)})
		if e, errno := id.channel.next(); errno == 0 {
			events++
			if e.Event == rdmacm.CM_EVENT_CONNECT_REQUEST {
				requests++
				require.Zero(t, find[identifier](b, uint64(e.ID)).destroy())
			}
			require.Zero(t, b.ackEvent(addressOf(e)))
		}
	}
	assert.Greater(t, events, 1000)
	assert.Greater(t, requests, 100)
	assert.Zero(t, id.destroy())
	for address, object := range b.objects { // the device stays open
		switch object.(type) {
		case *device, *context:
		default:
			assert.Fail(t, "an object is left", "%#x: %T", address, object)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
