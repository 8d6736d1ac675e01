// SPDX-License-Identifier: BSD-2-Clause

// Package made records where a program creates objects, for leak reports.
package made

import (
	"cmp"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Place is the call stack that created an object.
type Place struct {
	calls []uintptr
	work  *Work // if a goroutine of this module created the object for the program
}

// Work is work of this module's goroutines on behalf of a call of the program, such as a connection accepted for a
// program that listens.
type Work struct {
	by    Place
	taken atomic.Pointer[Place]
}

// NewWork returns work on behalf of the program's call at a place.
func NewWork(by Place) *Work { return &Work{by: by} }

// Taken records the place at which the program received the result. Reports then name that place for all objects of the
// work.
func (w *Work) Taken(at Place) { w.taken.Store(&at) }

// wanted reports whether places are recorded. Recording takes longer than many C calls.
var wanted atomic.Bool

// Want enables recording.
func Want() { wanted.Store(true) }

// most is the maximum number of recorded calls. It must include the program's, which follow those of this module.
const most = 48

// Here returns the call stack of the caller if recording is enabled, and otherwise the zero Place.
func Here() Place {
	if !wanted.Load() {
		return Place{}
	}
	calls := make([]uintptr, most)
	calls = calls[:runtime.Callers(3, calls)]
	work, _ := behalf.Load(goroutine())
	by, _ := work.(*Work)
	return Place{calls, by}
}

// behalf maps goroutines that run For to their work.
var behalf sync.Map

// For calls do, which creates objects as part of work w. It is needed because the call stack of this module's
// goroutines contains no calls of the program.
func For(w *Work, do func()) {
	if !wanted.Load() {
		do()
		return
	}
	own := goroutine()
	behalf.Store(own, w)
	defer behalf.Delete(own)
	do()
}

// Shared calls do, which creates objects for all connections of a device. The first connection creates them, and the
// last one, which reports list itself, keeps them open. Reports look for Shared in the call stack.
func Shared(do func()) { do() }

// isShared reports whether Shared is in the call stack.
func (p Place) isShared() bool {
	for frames := runtime.CallersFrames(p.calls); ; {
		f, more := frames.Next()
		if f.Function == module+"rdma/internal/made.Shared" {
			return true
		}
		if !more {
			return false
		}
	}
}

// Made describes where an object was created and by which function of this module, or states that connections share it.
func (p Place) Made() string {
	if p.isShared() {
		return "shared by all IDs and connections of its device; closed with the last one"
	}
	place, by := p.find()
	if by != "" {
		by = " by " + by
	}
	return "made at " + place + by
}

// all returns the calls, innermost first: those of the goroutine, followed by those of the program that it works for.
func (p Place) all() []uintptr {
	calls := p.calls
	for w := p.work; w != nil; w = w.by.work {
		if at := w.taken.Load(); at != nil {
			calls = append(calls[:len(calls):len(calls)], at.calls...)
		}
		calls = append(calls[:len(calls):len(calls)], w.by.calls...)
	}
	return calls
}

// goroutine returns the header line of the goroutine's stack trace, which contains its number. Go has no other way to
// identify goroutines.
func goroutine() string {
	var b [40]byte
	line, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), "[")
	return line
}

// module is the prefix of this module's function names.
const module = "github.com/goverbs/goverbs/"

// find returns the program's innermost call, such as "shelf/server.go:12 (main.serve)", and the function of this module
// that it called, such as "rdma.Device.NewRC". If the standard library called this module, find returns the standard
// library's call, and otherwise this module's outermost call.
func (p Place) find() (place, by string) {
	last, library := "", ""
	for frames := runtime.CallersFrames(p.all()); ; {
		f, more := frames.Next()
		switch {
		case isOurs(f.Function) && !strings.HasSuffix(f.File, "_test.go"):
			last, by = text(f), name(f)
		case !isGos(f):
			return text(f), by
		case !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, "sync."):
			library = cmp.Or(library, text(f))
		}
		if !more {
			return cmp.Or(library, last), by
		}
	}
}

// isGos reports whether a call is in the standard library. It compares the directory with that of package strings. With
// -trimpath, file names start with package paths: those of the standard library have no dot in the first element, and
// the program's own module is excluded by name.
func isGos(f runtime.Frame) bool {
	root, ok := strings.CutSuffix(library(), "strings/strings.go")
	if ok && root != "" {
		return strings.HasPrefix(f.File, root)
	}
	first, _, _ := strings.Cut(f.File, "/")
	return !strings.Contains(first, ".") && !slices.Contains(program(), first)
}

// library returns the file of a function in the standard library.
var library = sync.OnceValue(func() string {
	var pc [1]uintptr
	strings.IndexFunc("x", func(rune) bool { return runtime.Callers(2, pc[:]) > 0 })
	f, _ := runtime.CallersFrames(pc[:]).Next()
	return f.File
})

// program returns the prefixes of the main module's file names in a build with -trimpath.
var program = sync.OnceValue(func() []string {
	names := []string{"main", "command-line-arguments"}
	if info, ok := debug.ReadBuildInfo(); ok {
		first, _, _ := strings.Cut(info.Main.Path, "/")
		names = append(names, first)
	}
	return names
})

func text(f runtime.Frame) string {
	dir, file := filepath.Split(f.File)
	return fmt.Sprintf("%s/%s:%d (%s)", filepath.Base(dir), file, f.Line, name(f))
}

// name returns a function's name, such as "stream.Dialer.Dial".
func name(f runtime.Frame) string {
	return strings.NewReplacer("(*", "", ")", "").Replace(f.Function[strings.LastIndex(f.Function, "/")+1:])
}

// isOurs reports whether a function belongs to a package of this module that programs call.
func isOurs(function string) bool {
	rest, ok := strings.CutPrefix(function, module)
	return ok && (strings.HasPrefix(rest, "rdma") || strings.HasPrefix(rest, "generated/") ||
		strings.HasPrefix(rest, "runtime"))
}
