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

// File is memory of a file, mapped so that writes to the memory are writes to the file.
//
// On a file system with direct access to persistent memory (DAX), the mapping is synchronous (MAP_SYNC): data in the
// memory is persistent as soon as it has left caches, and a flush can promise persistence. On any other file system,
// the memory is the kernel's page cache. Data there survives the process, because the kernel writes it to the file by
// itself, but not a loss of power: only Sync, on this side, makes it persistent.
//
// If another program truncates the file, what it cut off is no memory any more: a software device reports accesses of
// peers as errors, but an access of this program to Bytes is a fault, which ends the program unless
// [runtime/debug.SetPanicOnFault] makes it a panic. Map a file that no other user may write to.
type File struct {
	file        *os.File
	bytes       []byte
	synchronous bool // the mapping is, as on DAX
	persistent  bool

	mu      sync.Mutex
	regions map[*MR]struct{}
	over    bool
}

func (f *File) made() bool { return f != nil && f.file != nil }

// FileOptions say how a file is mapped. The zero value maps all of an existing file.
type FileOptions struct {
	// Size is the number of bytes that the file gets. It is created if it does not exist, extended with zeros if it is
	// shorter, and never cut. 0 means the size that it has. Blocks are allocated for a file that is extended, if the
	// file system can: without one, an access to the memory is a fault when the disk is full.
	Size int64
	// AssumePersistent says that the memory is persistent although the file system does not say so: memory with a
	// battery, or a file that stands for persistent memory in a test. A device that flushes natively judges for itself
	// when the memory is registered: a software device takes it with soft.DeviceOptions.Persistent.
	AssumePersistent bool
}

// OpenFile opens and maps a file. On Linux, the name must not be a symbolic link; its directories may be.
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

// MapFile maps a file that is open for reading and writing: one without a name, or whose name others could replace.
// Close of the File closes it, too; if MapFile fails, it stays open.
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
		return nil, invalid(op, "a size of %d", o.Size)
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
		logWarn("the memory of a file is not persistent: flushes make it visible, and only File.Sync persistent",
			"file", file.Name())
	}
	return f, nil
}

// Bytes returns the memory. Do not use it after Close, which makes Bytes return nil.
func (f *File) Bytes() []byte {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Persistent reports whether flushed data survives a loss of power.
func (f *File) Persistent() bool { return f != nil && f.persistent }

// Config returns what peers have to know to flush the memory: direct writes are persistent if the memory is.
func (f *File) Config() PeerConfig { return PeerConfig{DirectWriteToPmem: f.Persistent()} }

// FlushUsage returns the flushes that the memory can promise: both if it is persistent, or else FlushVisibility.
func (f *File) FlushUsage() Usage {
	if f.Persistent() {
		return FlushVisibility | FlushPersistent
	}
	return FlushVisibility
}

// Sync writes length bytes at an offset to the storage, and returns when they are there. It blocks.
//
// Man: msync(2)
func (f *File) Sync(offset, length int) error {
	const op = "File.Sync"
	if !f.made() {
		return neverMade(op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return closed(op)
	case offset < 0 || length < 0 || offset > len(f.bytes) || length > len(f.bytes)-offset:
		return invalid(op, "%d bytes at offset %d of a file of %d", length, offset, len(f.bytes))
	}
	start := offset / pageSize * pageSize
	return failed(op, syncShared(f.bytes[start:offset+length]))
}

var pageSize = os.Getpagesize()

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// RegFile registers the memory of a file. The file cannot be closed before the region. If the memory is not persistent,
// FlushPersistent is refused with ErrNotSupported: a flush could not keep that promise. Linux lets devices use files on
// DAX with on-demand paging only: others are refused.
//
// C: rpma_mr_reg
func (p *Peer) RegFile(f *File, usage Usage) (*MR, error) {
	const op = "Peer.RegFile"
	if !f.made() {
		return nil, invalid(op, "no file")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return nil, closed(op)
	case usage&FlushPersistent != 0 && !f.persistent:
		return nil, unsupported(op, "the memory of %s is not persistent, so a flush cannot promise persistence: "+
			"register it without FlushPersistent (see File.FlushUsage), and use File.Sync", f.file.Name())
	}
	m, err := p.newMR(op, uint64(len(f.bytes)), f.bytes, usage, func(access ibv.AccessFlags) (*rdma.MR, error) {
		return p.pd.RegAddress(addressOf(f.bytes), uint64(len(f.bytes)), uint64(addressOf(f.bytes)), access)
	})
	if err != nil && f.synchronous && !p.odp && errors.Is(err, rdma.ErrNotSupported) {
		return nil, &Error{Op: op, Code: ErrProvider, Err: err, Reason: "the kernel lets devices use files on " +
			"persistent memory (DAX) with on-demand paging only, which this device lacks: use one that has it, or " +
			"map a device of persistent memory (/dev/dax) and register that with RegAddress"}
	}
	if err != nil {
		return nil, err
	}
	m.file = f
	f.regions[m] = struct{}{}
	return m, nil
}

// leave forgets a region that was closed. f may be nil.
func (f *File) leave(m *MR) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.regions, m)
}

// Close unmaps the memory and closes the file. It fails while the memory is registered.
func (f *File) Close() error {
	const op = "File.Close"
	if !f.made() {
		return neverMade(op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return nil
	}
	if n := len(f.regions); n > 0 {
		return failed(op, fmt.Errorf("%w: %d memory regions have to be closed first", rdma.ErrInUse, n))
	}
	if err := unmapShared(f.bytes); err != nil {
		return failed(op, err)
	}
	f.over, f.bytes = true, nil
	return failed(op, f.file.Close())
}
