// SPDX-License-Identifier: BSD-2-Clause

// Package testbed creates verbs objects on a guest's device, for tests that run there. It uses only the generated packages
// and the runtime. An error fails the test, and objects are destroyed in reverse order when the test ends.
package testbed

import (
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// Kernel returns the name of the guest's kernel, such as "6.1". It skips tests that run outside a guest.
func Kernel(t testing.TB) string {
	t.Helper()
	name := os.Getenv(wire.EnvGuest)
	if name == "" {
		t.Skip("runs on a real kernel with Soft-RoCE: make vm, or go run ./conformance/vm/cmd/vmtest -- " +
			"./conformance/vm/...")
	}
	return name
}

// Many returns how many objects a test creates: all, or fewer on emulated processors in make test.
func Many(all, emulated int) int {
	if os.Getenv(wire.EnvGuest) != "" && os.Getenv("GOVERBS_EVERYTHING") == "" {
		return emulated
	}
	return all
}

// Testbed is an open device with a protection domain.
type Testbed struct {
	Context *ibv.Context
	PD      *ibv.PD
	Port    ibv.PortAttr
	GID     ibv.GID         // RoCE v2 GID of the device's IPv4 address
	Index   uint8           // index of the GID
	Access  ibv.AccessFlags // maximum access of queue pairs in INIT and of [Testbed.Buffer]

	Patient bool // the peer is another guest, which may not be scheduled for a long time

	t testing.TB
}

// For returns the same device for a subtest. Objects created with it are destroyed when the subtest ends.
func (r *Testbed) For(t testing.TB) *Testbed {
	sub := *r
	sub.t = t
	return &sub
}

// PortNum is the only port of the device.
const PortNum = 1

// Open opens the guest's device.
func Open(t testing.TB) *Testbed {
	t.Helper()
	Kernel(t)
	return open(t, os.Getenv(wire.EnvDevice), net.ParseIP(os.Getenv(wire.EnvAddress)))
}

func open(t testing.TB, device string, local net.IP) *Testbed {
	t.Helper()
	r := &Testbed{t: t, Context: openDevice(t, device)}
	t.Cleanup(func() { require.NoError(t, verbs.CloseDevice(r.Context)) })
	require.NoError(t, verbs.QueryPort(r.Context, PortNum, &r.Port))
	if !IWARP() { // the kernel creates GIDs of addresses asynchronously
		require.Eventually(t, func() bool { return r.findGID(local) }, 10*time.Second, 5*time.Millisecond,
			"no GID of RoCE v2 with address %v", local)
	}
	pd, err := verbs.AllocPD(r.Context)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(pd)) })
	r.PD = pd
	r.Access = r.allAccess()
	return r
}

// OpenDevice opens the guest's device. The caller must close it.
func OpenDevice(t testing.TB) *ibv.Context {
	t.Helper()
	return openDevice(t, os.Getenv(wire.EnvDevice))
}

func openDevice(t testing.TB, name string) *ibv.Context {
	t.Helper()
	var n int32
	backend, err := Backend()
	require.NoError(t, err)
	list, err := verbs.From{Backend: backend}.GetDeviceList(&n)
	require.NoError(t, err)
	defer verbs.FreeDeviceList(list)
	for _, device := range unsafe.Slice(list, n) {
		called, err := verbs.GetDeviceName(device.Deref())
		require.NoError(t, err)
		if called == name {
			context, err := verbs.OpenDevice(device.Deref())
			require.NoError(t, err)
			return context
		}
	}
	require.FailNow(t, "no such device", "%q among %d", name, n)
	return nil
}

// findGID finds the GID by type and address, since its index varies.
func (r *Testbed) findGID(local net.IP) bool {
	entries := make([]ibv.GIDEntry, 64)
	n, err := verbs.QueryGIDTable(r.Context, &entries[0], uint64(len(entries)), 0)
	if err != nil {
		return false
	}
	for _, e := range entries[:n] {
		if e.GIDType == ibv.GID_TYPE_ROCE_V2 && net.IP(e.GID.Raw()[:]).Equal(local) {
			r.GID, r.Index = e.GID, uint8(e.GIDIndex)
			return true
		}
	}
	return false
}

// Check fails the test on an error that is not the subject of the test.
func (r *Testbed) Check(err error) {
	r.t.Helper()
	require.NoError(r.t, err)
}

// Defer runs f when the test ends, before objects that were created earlier are destroyed.
func (r *Testbed) Defer(f func()) { r.t.Cleanup(f) }

// Memory maps zeroed memory outside the Go heap, where addresses are stable.
func (r *Testbed) Memory(size int) []byte {
	r.t.Helper()
	m, err := offheap.Map(size, offheap.Options{})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { m.Close() })
	return m.Bytes()[:size]
}

// Records maps n zeroed records of a type outside the Go heap.
func Records[T any](r *Testbed, n int) []T {
	r.t.Helper()
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(r.Memory(n*int(unsafe.Sizeof(one)))))), n)
}

// Buffer is registered memory.
type Buffer struct {
	Bytes []byte
	MR    *ibv.MR
}

// allAccess returns all access flags that a region or a queue pair can have. Kernels support flush from 6.2 on.
func (r *Testbed) allAccess() ibv.AccessFlags {
	r.t.Helper()
	all := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ
	if IWARP() { // neither atomic operations nor flushes
		return all
	}
	all |= ibv.ACCESS_REMOTE_ATOMIC
	memory := r.Memory(8)
	mr, err := verbs.RegMR(r.PD, uintptr(unsafe.Pointer(&memory[0])), 8, all|ibv.ACCESS_FLUSH_GLOBAL)
	if err != nil {
		return all
	}
	require.NoError(r.t, verbs.DeregMR(mr))
	return all | ibv.ACCESS_FLUSH_GLOBAL
}

// Buffer maps and registers memory.
func (r *Testbed) Buffer(size int, access ibv.AccessFlags) *Buffer {
	r.t.Helper()
	b := &Buffer{Bytes: r.Memory(size)}
	mr, err := verbs.RegMR(r.PD, uintptr(unsafe.Pointer(&b.Bytes[0])), uint64(size), access)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeregMR(mr)) })
	b.MR = mr
	return b
}

// Address returns the address of a byte of the buffer.
func (b *Buffer) Address(offset int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&b.Bytes[offset])))
}

// SGE returns an entry for a part of the buffer.
func (b *Buffer) SGE(offset, length int) ibv.SGE {
	return ibv.SGE{Addr: b.Address(offset), Length: uint32(length), LKey: b.MR.LKey}
}
