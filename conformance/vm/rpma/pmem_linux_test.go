// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rpma"
)

const (
	pmem       = "/dev/pmem0"
	fileSystem = 64 << 20 // size of the file system at the start of the memory
	pmemPort   = 7690
	persisted  = "data that has to survive"
)

// TestPersistentMemory checks how package rpma classifies persistent memory of a real kernel. make vm WHAT=dax runs it
// in a guest with an NVDIMM that has a file system.
func TestPersistentMemory(t *testing.T) {
	if _, err := os.Stat(pmem); err != nil || os.Getenv(wire.EnvGuest) == "" { // never use a host's memory
		t.Skip("needs persistent memory with a file system: run make vm WHAT=dax")
	}
	p := newPeer(t)
	t.Run("ordinary memory", func(t *testing.T) { ordinaryMemory(t, p) })
	t.Run("file on DAX", func(t *testing.T) { fileOnDAX(t, p) })
	t.Run("device", func(t *testing.T) { deviceDAX(t, p) })
}

func newPeer(t *testing.T) *rpma.Peer {
	d, err := rpma.FindDevice(timeout(t), rpma.Local, address(0).Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	p, err := rpma.NewPeer(d, rpma.PeerOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// ordinaryMemory checks that ordinary memory, and a file in it, are not persistent.
func ordinaryMemory(t *testing.T, p *rpma.Peer) {
	if p.NativeFlush() {
		_, err := p.RegMR(make([]byte, 4096), rpma.WriteDst|rpma.FlushPersistent)
		assert.ErrorIs(t, err, unix.EINVAL)
	}
	f, err := rpma.OpenFile(filepath.Join(t.TempDir(), "file"), rpma.FileOptions{Size: 4096})
	require.NoError(t, err)
	defer f.Close()
	assert.False(t, f.Persistent())
	assert.Equal(t, rpma.PeerConfig{}, f.Config())
	_, err = p.RegFile(f, rpma.WriteDst|rpma.FlushPersistent)
	assert.ErrorIs(t, err, rpma.ErrNotSupported)
}

// claim binds the persistent memory to a driver, as a device of the driver's kind.
func claim(t *testing.T, device, driver string) {
	const devices, drivers = "/sys/bus/nd/devices/", "/sys/bus/nd/drivers/"
	os.WriteFile(drivers+"nd_pmem/unbind", []byte("namespace0.0"), 0) // required the first time
	for _, set := range [][2]string{
		{devices + device + "/mode", "ram"},
		{devices + device + "/align", "4096"},
		{devices + device + "/uuid", "7f6c0b9e-93f5-4a1f-9d2e-2f3f1b4a0c11"},
		{devices + device + "/namespace", "namespace0.0"},
		{drivers + driver + "/bind", device},
	} {
		require.NoError(t, os.WriteFile(set[0], []byte(set[1]), 0))
	}
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(drivers+driver+"/unbind", []byte(device), 0))
		require.NoError(t, os.WriteFile(devices+device+"/namespace", []byte("\n"), 0))
	})
}

// fileOnDAX maps a file synchronously. Kernels pin such memory only for a device with on-demand paging, and the error
// for other devices says so.
func fileOnDAX(t *testing.T, p *rpma.Peer) {
	raw, err := os.Open(pmem)
	require.NoError(t, err)
	system := make([]byte, fileSystem)
	_, err = io.ReadFull(raw, system)
	require.NoError(t, err)
	require.NoError(t, raw.Close())
	claim(t, "pfn0.0", "nd_pmem") // DAX needs page structures, at the start of the memory
	require.NoError(t, os.WriteFile(pmem, system, 0))
	dir := t.TempDir()
	require.NoError(t, unix.Mount(pmem, dir, "ext4", 0, "dax"))
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	name := filepath.Join(dir, "file")
	f, err := rpma.OpenFile(name, rpma.FileOptions{Size: 1 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	assert.True(t, f.Persistent())
	assert.Equal(t, rpma.PeerConfig{DirectWriteToPmem: true}, f.Config())
	assert.Equal(t, rpma.FlushVisibility|rpma.FlushPersistent, f.FlushUsage())
	copy(f.Bytes()[4096:], persisted)
	onDisk, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, persisted, string(onDisk[4096:4096+len(persisted)]))
	m, err := p.RegFile(f, rpma.WriteDst|f.FlushUsage())
	if err != nil {
		assert.ErrorIs(t, err, unix.EOPNOTSUPP)
		assert.ErrorContains(t, err, "on-demand paging")
		return
	}
	defer func() { require.NoError(t, m.Close()) }()
	flushed(t, p, m, f.Bytes())
}

// deviceDAX registers a DAX device of persistent memory, and checks that a persistent flush of it is native.
func deviceDAX(t *testing.T, p *rpma.Peer) {
	const size = 2 << 20
	claim(t, "dax0.0", "dax_pmem")
	device, err := os.OpenFile("/dev/dax0.0", os.O_RDWR, 0)
	require.NoError(t, err)
	defer device.Close()
	memory, err := unix.Mmap(int(device.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
	require.NoError(t, err)
	defer unix.Munmap(memory)
	m, err := p.RegAddress(uintptr(unsafe.Pointer(&memory[0])), size,
		rpma.WriteDst|rpma.FlushVisibility|rpma.FlushPersistent)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	flushed(t, p, m, memory)
}

// flushed connects the peer to itself, writes to persistent memory, and flushes.
func flushed(t *testing.T, p *rpma.Peer, m *rpma.MR, memory []byte) {
	localMR, err := p.RegMR([]byte(persisted), rpma.WriteSrc)
	require.NoError(t, err)
	defer localMR.Close()
	at := address(pmemPort).String()
	e, err := p.Listen(timeout(t), at)
	require.NoError(t, err)
	defer e.Close()
	accepted := make(chan *rpma.Conn, 1)
	go func() {
		c, err := e.Accept(timeout(t), nil, nil)
		assert.NoError(t, err)
		accepted <- c
	}()
	c, err := p.Connect(timeout(t), at, nil, nil)
	require.NoError(t, err)
	defer c.Close()
	other := <-accepted
	require.NotNil(t, other)
	defer other.Close()
	d := m.Descriptor()
	to, err := rpma.ParseRemoteMR(d[:])
	require.NoError(t, err)
	assert.ErrorIs(t, c.Flush(to, 4096, 8, rpma.Persistent, rpma.Always, 1), rpma.ErrNotSupported,
		"the peer has not declared the memory persistent yet")
	c.ApplyRemotePeerConfig(rpma.PeerConfig{DirectWriteToPmem: true})
	require.NoError(t, c.Write(to, 4096, localMR, 0, uint64(len(persisted)), rpma.OnError, 1))
	require.NoError(t, c.Flush(to, 4096, uint64(len(persisted)), rpma.Persistent, rpma.Always, 2))
	wc := make([]ibv.WC, 1)
	_, err = c.CQ().Wait(timeout(t), wc)
	require.NoError(t, err)
	require.NoError(t, c.CompletionErr(&wc[0]))
	assert.Equal(t, uint64(2), wc[0].WRID)
	if p.NativeFlush() {
		assert.Equal(t, ibv.WC_FLUSH, wc[0].Opcode)
	}
	assert.Equal(t, persisted, string(memory[4096:4096+len(persisted)]))
}
