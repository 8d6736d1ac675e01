// SPDX-License-Identifier: BSD-2-Clause

// Package trace records a program's verbs if the environment variable GOVERBS_TRACE names a file: calls of the control
// path, posts, and completions. Otherwise queues do not use this package, and the control path has one additional
// comparison.
//
// Each line is a JSON object. It is written before the program continues, so the trace of a crashed program is
// complete. goverbs trace reads the file.
package trace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// Variable is the environment variable with the name of the file, in which %p stands for the process ID. Programs with
// elevated privileges ignore it.
const Variable = "GOVERBS_TRACE"

// current is the active recorder, or nil.
var current atomic.Pointer[Recorder]

var starting sync.Mutex // serializes Start

// problem is the error of creating the file named by Variable, or nil.
var problem error

func init() {
	if name := rights.Getenv(Variable); name != "" {
		if _, err := Start(name); err != nil {
			problem = fmt.Errorf("%s: %w", Variable, err)
		}
	}
}

// Recorder writes a trace file.
type Recorder struct {
	begin time.Time
	calls atomic.Uint64

	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	file *os.File
	// +checklocks:mu
	asked map[string]time.Time // when a device's counters were last written
}

// Start starts recording objects that are created from now on. It fails if the file exists, because it could belong to
// another process.
func Start(name string) (*Recorder, error) {
	starting.Lock()
	defer starting.Unlock()
	if current.Load() != nil {
		return nil, errors.New("another trace is being written")
	}
	name = strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid()))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("create: %q: %w; remove it, or use %%p in the name for the process ID", name,
			os.ErrExist)
	}
	if err != nil {
		return nil, fmt.Errorf("create: %q: %w", name, errors.Unwrap(err)) // without the PathError, whose name is not quoted
	}
	r := &Recorder{begin: time.Now(), file: file, asked: map[string]time.Time{}}
	l := newLine()
	l.number("trace", 1)
	l.text("program", os.Args[0])
	l.number("pid", uint64(os.Getpid()))
	l.text("time", r.begin.Format(time.RFC3339Nano))
	r.write(l)
	current.Store(r)
	runtime.Observe(r.observe)
	verberr.Observe(r.invalid)
	return r, nil
}

// Stop stops recording, also for queues that were created during it.
func (r *Recorder) Stop() error {
	runtime.Observe(nil)
	verberr.Observe(nil)
	current.CompareAndSwap(r, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	file := r.file
	r.file = nil
	return file.Close()
}

// since returns the nanoseconds since the start of the trace.
func (r *Recorder) since() uint64 { return uint64(time.Since(r.begin)) }

// write completes a line and writes it. If writing fails, it prints one message and recording ends, because the program
// must not fail.
func (r *Recorder) write(l *line) {
	l.b = append(l.b, '}', '\n')
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		if _, err := r.file.Write(l.b); err != nil {
			fmt.Fprintf(os.Stderr, "goverbs: the trace %q ends here: %v\n", r.file.Name(), errors.Unwrap(err))
			r.file.Close()
			r.file = nil
		}
	}
	l.free()
}

// call is a call in progress.
type call struct {
	*Recorder
	number   uint64
	function string
	args     []uint64
	line     *line
	begin    uint64
	dropped  bool
}

// observe begins the line of a control path call with its arguments, before C is called.
func (r *Recorder) observe(function string, args []uint64) runtime.Observation {
	c := &call{Recorder: r, number: r.calls.Add(1), function: function, args: args, line: newLine(), begin: r.since()}
	c.line.number("t", c.begin)
	c.line.number("n", c.number)
	c.line.text("verb", function)
	if d := decoderOf(function); d.before != nil {
		ignoreFaults(func() { d.before(c.line, args) })
	}
	return c
}

// Ended writes the line.
func (c *call) Ended(result uint64, errno runtime.Errno) {
	const eagain = 11 // no event is available; programs that poll call it often
	if c.dropped = int32(result) == -1 && errno == eagain; c.dropped {
		c.line.free()
		return
	}
	c.line.number("d", c.since()-c.begin)
	if d := decoderOf(c.function); d.after != nil {
		ignoreFaults(func() { d.after(c.line, c.args, uint64(uintptr(result))) })
	}
	c.write(c.line)
}

// Failed records that the call failed.
func (c *call) Failed(errno runtime.Errno) {
	if c.dropped {
		return
	}
	l := newLine()
	l.number("t", c.since())
	l.number("n", c.number)
	l.number("errno", uint64(errno))
	l.text("error", errno.Error())
	c.write(l)
}

// Refused records a post that a check of this library rejected.
func Refused(verb string, qp uint32, id uint64, errno runtime.Errno, reason string) {
	r := current.Load()
	if r == nil {
		return
	}
	l := newLine()
	l.number("t", r.since())
	l.text("verb", verb)
	l.number("qp", uint64(qp))
	l.number("id", id)
	l.number("errno", uint64(errno))
	l.text("error", reason)
	r.write(l)
}

// invalid records a call that a check of this library rejected.
func (r *Recorder) invalid(e *verberr.Error) {
	if e.Verb == "" { // the caller wraps it
		return
	}
	l := newLine()
	l.number("t", r.since())
	l.text("verb", e.Verb)
	l.text("object", e.Object)
	l.number("errno", uint64(e.Errno))
	l.text("error", e.Reason)
	r.write(l)
}
