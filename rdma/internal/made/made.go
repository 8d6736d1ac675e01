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

// Place is the call stack of an object's creation.
type Place struct {
	calls []uintptr
	work  *Work // of the goroutine that made it, if that worked for the program
}

// Work is work that a goroutine of this module does on behalf of the program's call at a place, such as a connection
// for a listening program.
type Work struct {
	by    Place
	taken atomic.Pointer[Place]
}

// NewWork returns work for the program at a place.
func NewWork(by Place) *Work { return &Work{by: by} }

// Taken records where the program has received the result. Reports then name that place for all objects of the work.
func (w *Work) Taken(at Place) { w.taken.Store(&at) }

// wanted reports whether places are recorded, which takes longer than many C calls.
var wanted atomic.Bool

// Want enables recording.
func Want() { wanted.Store(true) }

// most is the maximum number of recorded calls. The program's own follow those of this module.
const most = 48

// Here returns the calls that lead to the caller, if recording is enabled.
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

// behalf has the work of each goroutine in For.
var behalf sync.Map

// For runs do, which creates objects on behalf of the program that the work is for: the call stack of a goroutine of
// this module contains no calls of the program.
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

// Shared runs do, which creates objects for all connections of a device. The first connection creates them, but the
// last one, which is reported itself, keeps them. Reports find Shared in the call stack.
func Shared(do func()) { do() }

// isShared reports whether the calls went through Shared.
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

// Made describes where an object was created and by which function of this module, or that connections share it.
func (p Place) Made() string {
	if p.isShared() {
		return "shared by the IDs and connections of its device, and gone with the last of them"
	}
	place, by := p.find()
	if by != "" {
		by = " by " + by
	}
	return "made at " + place + by
}

// all returns the calls, innermost first: those of the goroutine, then those of the program that it works for.
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

// goroutine returns the line with the number of the goroutine; Go has no other way to identify goroutines.
func goroutine() string {
	var b [40]byte
	line, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), "[")
	return line
}

// module is the prefix of the functions that are not the program's.
const module = "github.com/goverbs/goverbs/"

// find returns the innermost call of the program, "shelf/server.go:12 (main.serve)", and the function of this module
// that it called, "rdma.Device.NewRC". If Go's library called this module, it returns the call of Go's library instead,
// or else the outermost call of this module.
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

// isGos reports whether a call is in Go's library, which is where package strings is. A build with -trimpath has
// package names instead of directories; the first part of those of Go's library has no dot, and is not that of the
// program's module.
func isGos(f runtime.Frame) bool {
	root, ok := strings.CutSuffix(library(), "strings/strings.go")
	if ok && root != "" {
		return strings.HasPrefix(f.File, root)
	}
	first, _, _ := strings.Cut(f.File, "/")
	return !strings.Contains(first, ".") && !slices.Contains(program(), first)
}

// library returns the file of a function of Go's library.
var library = sync.OnceValue(func() string {
	var pc [1]uintptr
	strings.IndexFunc("x", func(rune) bool { return runtime.Callers(2, pc[:]) > 0 })
	f, _ := runtime.CallersFrames(pc[:]).Next()
	return f.File
})

// program returns the prefixes of the program module's files in a build with -trimpath.
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

// name returns the name of the function, such as "stream.Dialer.Dial".
func name(f runtime.Frame) string {
	return strings.NewReplacer("(*", "", ")", "").Replace(f.Function[strings.LastIndex(f.Function, "/")+1:])
}

// isOurs reports whether a function belongs to packages that programs call.
func isOurs(function string) bool {
	rest, ok := strings.CutPrefix(function, module)
	return ok && (strings.HasPrefix(rest, "rdma") || strings.HasPrefix(rest, "generated/") ||
		strings.HasPrefix(rest, "runtime"))
}
