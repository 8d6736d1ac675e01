// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// File is the memory of a mapped file. Writing to the memory writes to the file.
//
// On a file system with direct access to persistent memory (DAX), the mapping is synchronous (MAP_SYNC): data is
// persistent as soon as it has left the caches, so a flush can guarantee persistence. On other file systems, the memory
// is the kernel's page cache. Data there survives the process, because the kernel writes it to the file, but not a
// power failure: only Sync on this side makes it persistent.
//
// If another program truncates the file, memory beyond the new end becomes inaccessible. A software device reports
// errors to peers that access it, but if this program accesses it through Bytes, it crashes, unless
// [runtime/debug.SetPanicOnFault] turns the fault into a panic. Map only files that no other user can write to.
type File struct {
	file        *os.File
	bytes       []byte
	synchronous bool // mapped with MAP_SYNC
	persistent  bool

	mu      sync.Mutex
	regions map[*MR]struct{}
	over    bool
}

func (f *File) created() bool { return f != nil && f.file != nil }

// FileOptions are options for mapping a file. The zero value maps all of an existing file.
type FileOptions struct {
	// Size is the minimum size of the file in bytes. The file is created if it does not exist and extended with zeros
	// if it is shorter; it is never truncated. 0 means the current size. Blocks are allocated for the extension if the
	// file system supports that; otherwise an access to the memory faults when the disk is full.
	Size int64
	// AssumePersistent treats the memory as persistent although the file system does not report it: for memory with a
	// battery, or to emulate persistent memory in a test. A device with native flush checks the memory itself when it
	// is registered; a software device accepts it with soft.DeviceOptions.Persistent.
	AssumePersistent bool
}

// OpenFile opens and maps a file. On Linux, the last element of the name must not be a symbolic link.
func OpenFile(name string, o FileOptions) (*File, error) {
	flags := os.O_RDWR
	if o.Size > 0 {
		flags |= os.O_CREATE
	}
	file, err := open(name, flags)
	if err != nil {
		return nil, failed("OpenFile", err)
	}
	f, err := MapFile(file, o)
	if err != nil {
		file.Close()
		return nil, err
	}
	return f, nil
}

// MapFile maps a file that is open for reading and writing, such as a file without a name, or one whose name another
// user could replace. Close of the File also closes it. If MapFile fails, the file stays open.
func MapFile(file *os.File, o FileOptions) (*File, error) {
	const op = "MapFile"
	if file == nil {
		return nil, invalid(op, "no file")
	}
	info, err := file.Stat()
	if err != nil {
		return nil, failed(op, err)
	}
	size := max(info.Size(), o.Size)
	switch {
	case o.Size < 0:
		return nil, invalid(op, "negative size %d", o.Size)
	case !info.Mode().IsRegular():
		return nil, invalid(op, "%q is not a regular file", file.Name())
	case size == 0:
		return nil, invalid(op, "%q is empty, and FileOptions.Size is 0", file.Name())
	case size != int64(int(size)):
		return nil, invalid(op, "%q has %d bytes, more than this machine can map", file.Name(), size)
	case size > info.Size():
		if err := extend(file, size); err != nil {
			return nil, failed(op, err)
		}
	}
	f := &File{file: file, regions: map[*MR]struct{}{}}
	if f.bytes, f.synchronous, err = mapShared(file, int(size)); err != nil {
		return nil, failed(op, err)
	}
	f.persistent = f.synchronous || o.AssumePersistent
	if !f.persistent {
		logWarn("file memory is not persistent: flushes only make it visible; use File.Sync",
			"file", file.Name())
	}
	return f, nil
}

// Bytes returns the memory, or nil after Close. Do not use the memory after Close.
func (f *File) Bytes() []byte {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Persistent reports whether flushed data survives a power failure.
func (f *File) Persistent() bool { return f != nil && f.persistent }

// Config returns the configuration for peers that flush the memory: direct writes are persistent if the memory is.
func (f *File) Config() PeerConfig { return PeerConfig{DirectWriteToPmem: f.Persistent()} }

// FlushUsage returns the flush types that the memory supports: both if it is persistent, otherwise FlushVisibility.
func (f *File) FlushUsage() Usage {
	if f.Persistent() {
		return FlushVisibility | FlushPersistent
	}
	return FlushVisibility
}

// Sync writes length bytes at an offset to the storage, and blocks until they are written.
//
// Man: msync(2)
func (f *File) Sync(offset, length int) error {
	const op = "File.Sync"
	if !f.created() {
		return notCreated(op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return closed(op)
	case offset < 0 || length < 0 || offset > len(f.bytes) || length > len(f.bytes)-offset:
		return invalid(op, "%d bytes at offset %d exceed the file's %d bytes", length, offset, len(f.bytes))
	}
	start := offset / pageSize * pageSize
	return failed(op, syncShared(f.bytes[start:offset+length]))
}

var pageSize = os.Getpagesize()

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// RegFile registers a file's memory. The file cannot be closed before the region. If the memory is not persistent,
// FlushPersistent is rejected with ErrNotSupported. For files on DAX, Linux requires devices with on-demand paging.
//
// C: rpma_mr_reg
func (p *Peer) RegFile(f *File, usage Usage) (*MR, error) {
	const op = "Peer.RegFile"
	if !f.created() {
		return nil, invalid(op, "no file")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return nil, closed(op)
	case usage&FlushPersistent != 0 && !f.persistent:
		return nil, unsupported(op, "the memory of %s is not persistent, so a flush cannot guarantee persistence: "+
			"register it without FlushPersistent (see File.FlushUsage), and use File.Sync", f.file.Name())
	}
	m, err := p.newMR(op, uint64(len(f.bytes)), f.bytes, usage, func(access ibv.AccessFlags) (*rdma.MR, error) {
		return p.pd.RegAddress(addressOf(f.bytes), uint64(len(f.bytes)), uint64(addressOf(f.bytes)), access)
	})
	if err != nil && f.synchronous && !p.odp && errors.Is(err, rdma.ErrNotSupported) {
		return nil, &Error{Op: op, Code: ErrProvider, Err: err, Reason: "for files on persistent memory (DAX), the " +
			"kernel requires on-demand paging, which this device does not support: use a device that does, or " +
			"map a persistent memory device (/dev/dax) and register that with RegAddress"}
	}
	if err != nil {
		return nil, err
	}
	m.file = f
	f.regions[m] = struct{}{}
	return m, nil
}

// removeRegion removes a closed region. f may be nil.
func (f *File) removeRegion(m *MR) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.regions, m)
}

// Close unmaps the memory and closes the file. It fails while regions of the memory exist.
func (f *File) Close() error {
	const op = "File.Close"
	if !f.created() {
		return notCreated(op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return nil
	}
	if n := len(f.regions); n > 0 {
		return failed(op, fmt.Errorf("%w: close %d memory regions first", rdma.ErrInUse, n))
	}
	if err := unmapShared(f.bytes); err != nil {
		return failed(op, err)
	}
	f.over, f.bytes = true, nil
	return failed(op, f.file.Close())
}
