// SPDX-License-Identifier: BSD-2-Clause

package watch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// monitor contains all watches of the process, because a mapping can be registered with only one userfaultfd.
type monitor struct {
	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	file *os.File // nil while nothing is watched
	// +checklocks:mu
	fd uintptr
	// +checklocks:mu
	watches map[*Watch]struct{}
	// Memory released with madvise(2). The kernel reports the release before it frees the pages, so a registration may
	// still pin the old ones. Such memory is not watched again until it has been unmapped.
	// +checklocks:mu
	discarded []span
	// +checklocks:mu
	tried bool
	// +checklocks:mu
	broken error // set if this system cannot watch memory
}

var process = monitor{watches: map[*Watch]struct{}{}}

// Memory watches private anonymous memory. If the memory changes, notify is called once, on another goroutine; it must
// not wait for anything that could unmap memory. Memory returns an error if the memory cannot be watched.
func Memory(address, length uintptr, notify func()) (*Watch, error) {
	page := uintptr(os.Getpagesize())
	w := &Watch{start: address &^ (page - 1), end: (address + length + page - 1) &^ (page - 1), notify: notify}
	if err := process.add(w); err != nil {
		return nil, fmt.Errorf("the memory cannot be watched: %w", err)
	}
	if err := private(w.start, w.end); err != nil { // after add, so that later changes are reported
		w.Close()
		return nil, err
	}
	return w, nil
}

func (m *monitor) add(w *Watch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.openLocked(); err != nil {
		return err
	}
	// Wait for pending reports about earlier memory at these addresses, which would be attributed to this memory.
	for turns := 0; turns < maxYields && !steady(m.fd); turns++ {
		m.mu.Unlock()
		runtime.Gosched()
		m.mu.Lock()
		if err := m.openLocked(); err != nil {
			return err
		}
	}
	for _, d := range m.discarded {
		if overlap(w.start, w.end, d.start, d.end) {
			return errors.New("its pages were released with madvise")
		}
	}
	if err := register(m.fd, w.start, w.end); err != nil {
		return err
	}
	m.watches[w] = struct{}{}
	return nil
}

const maxYields = 100

// Same reports whether the memory has not changed since Memory. It also returns false while any other watched memory is
// changing. It makes a system call that does not block.
func (w *Watch) Same() bool {
	process.mu.Lock()
	same := !w.gone && steady(process.fd)
	process.mu.Unlock()
	return same
}

// Gone reports whether the memory has changed.
func (w *Watch) Gone() bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	return w.gone
}

// Close ends the watch. notify is not called afterwards, but a call may be in progress. notify must not call Close.
func (w *Watch) Close() {
	if idle := process.remove(w); idle != nil {
		idle.Close() // waits for the reading goroutine
	}
}

// remove removes a watch. It returns the file if it is no longer needed.
func (m *monitor) remove(w *Watch) *os.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.watches[w]; !ok {
		return nil
	}
	delete(m.watches, w)
	if !w.gone { // otherwise the addresses may belong to other memory
		m.unregisterLocked(w)
	}
	w.gone = true
	return m.idleLocked()
}

// idleLocked detaches and returns the file if it is no longer needed. The caller holds mu.
//
// +checklocks:m.mu
func (m *monitor) idleLocked() *os.File {
	if len(m.watches) > 0 || len(m.discarded) > 0 {
		return nil
	}
	file := m.file
	m.file = nil
	return file
}

// unregisterLocked ends the kernel's reports about memory that no other watch needs. The caller holds mu.
//
// +checklocks:m.mu
func (m *monitor) unregisterLocked(w *Watch) {
	for other := range m.watches {
		if overlap(w.start, w.end, other.start, other.end) {
			return
		}
	}
	for _, d := range m.discarded {
		if overlap(w.start, w.end, d.start, d.end) {
			return
		}
	}
	args := [2]uint64{uint64(w.start), uint64(w.end - w.start)}
	unix.Syscall(unix.SYS_IOCTL, m.fd, ioctlUnregister, uintptr(unsafe.Pointer(&args)))
}

// openLocked opens the userfaultfd, unless it is open, and starts reading reports. The caller holds mu.
//
// +checklocks:m.mu
func (m *monitor) openLocked() error {
	if m.file != nil || m.broken != nil {
		return m.broken
	}
	fd, err := open()
	if err == nil && !m.tried {
		m.tried = true
		if err = try(fd); err != nil {
			unix.Close(int(fd))
		}
	}
	if err != nil {
		if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.ENOMEM) {
			m.broken = err
		}
		return err
	}
	file := os.NewFile(fd, "userfaultfd")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	m.file, m.fd = file, fd
	go m.read(file, raw)
	return nil
}

// read reads reports until the file is closed.
func (m *monitor) read(file *os.File, raw syscall.RawConn) {
	raw.Read(func(uintptr) bool {
		gone, open := m.take(file)
		for _, w := range gone {
			w.notify()
		}
		return !open
	})
	file.Close()
}

// take reads all available reports. Reading a report resumes the thread that changed the memory, so take marks watches
// while it holds the lock that Same needs. open is false if the file is no longer the monitor's, or cannot be read.
func (m *monitor) take(file *os.File) (gone []*Watch, open bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.file == file { // otherwise the caller closes it
		e, err := next(m.fd)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return gone, true
		case errors.Is(err, unix.EINTR):
		case err != nil: // reports are lost, so any memory may have changed
			gone = append(gone, m.changedLocked(0, ^uintptr(0))...)
			m.broken = err
			return gone, false
		default:
			gone = append(gone, m.reportLocked(e)...)
			m.idleLocked()
		}
	}
	return gone, false
}

// reportLocked marks the watches that a report concerns. The caller holds mu.
//
// +checklocks:m.mu
func (m *monitor) reportLocked(e event) []*Watch {
	start, end := uintptr(e.args[0]), uintptr(e.args[1])
	switch e.kind {
	case eventRemap:
		end = start + uintptr(e.args[2])
		fallthrough
	case eventUnmap:
		m.discarded = without(m.discarded, start, end)
	case eventRemove:
		m.discarded = append(without(m.discarded, start, end), span{start, end})
		if all := m.discarded; len(all) > maxSpans {
			for _, d := range all {
				start, end = min(start, d.start), max(end, d.end)
			}
			m.discarded = []span{{start, end}}
		}
	}
	return m.changedLocked(start, end)
}

// maxSpans is the maximum number of separate discarded spans.
const maxSpans = 1024

// changedLocked marks the watches that overlap a range. The caller holds mu.
//
// +checklocks:m.mu
func (m *monitor) changedLocked(start, end uintptr) (gone []*Watch) {
	for w := range m.watches {
		if !w.gone && overlap(w.start, w.end, start, end) {
			w.gone = true
			gone = append(gone, w)
		}
	}
	return gone
}
