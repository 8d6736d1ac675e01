// SPDX-License-Identifier: BSD-2-Clause

// Package made notes where a program makes an object, for reports of what it has not closed.
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

// Place is the calls that led to where an object was made.
type Place struct {
	calls []uintptr
	work  *Work // of the goroutine that made it, if that worked for the program
}

// Work is what a goroutine of this module's own makes for the program that called at a place: a connection, for a
// program that listens.
type Work struct {
	by    Place
	taken atomic.Pointer[Place]
}

// NewWork is work for the program at a place.
func NewWork(by Place) *Work { return &Work{by: by} }

// Taken notes where the program has taken the result, which reports then name for all that the work made.
func (w *Work) Taken(at Place) { w.taken.Store(&at) }

// wanted says whether anybody asks for places: to find them out takes longer than many a call of C.
var wanted atomic.Bool

// Want has places found out from now on.
func Want() { wanted.Store(true) }

// most is how many calls are noted. The program's own are behind those of this module.
const most = 48

// Here notes the calls that lead to the caller, if places are wanted.
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

// behalf has the work that each goroutine of For does, by goroutine.
var behalf sync.Map

// For runs do, in which objects are made for the program that the work is for: a goroutine of this module's own has
// none of the program's calls.
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

// Shared runs do, in which objects are made for all connections of a device. The one that comes first makes them, and
// may be closed long before the last one: that one, which is reported itself, keeps them. It is found among the calls.
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

// Made says where an object was made and by which function of this module's, or that nobody in particular made it.
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

// all are the calls, innermost first: behind those of the goroutine, those of the program that it works for.
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

// goroutine returns the line with the number of the goroutine. Go has no other way to tell goroutines apart.
func goroutine() string {
	var b [40]byte
	line, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), "[")
	return line
}

// module begins the names of functions that are not the program's.
const module = "github.com/goverbs/goverbs/"

// find returns the innermost call that is the program's, "shelf/server.go:12 (main.serve)", and the function of this
// module that it called, "rdma.Device.NewRC". If there is no such call, because Go's library called this module, it is
// the call of Go's library; or else the outermost of this module.
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

// isGos reports whether a call is of Go's library, which is where package strings is. A build with -trimpath has names
// of packages for directories; those of Go's library have no dot in their first part and are not the program's.
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

// program returns how files of the program's module begin in a build with -trimpath.
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

// name is that of the function, as in "stream.Dialer.Dial".
func name(f runtime.Frame) string {
	return strings.NewReplacer("(*", "", ")", "").Replace(f.Function[strings.LastIndex(f.Function, "/")+1:])
}

// isOurs says whether a function is of the packages that programs call.
func isOurs(function string) bool {
	rest, ok := strings.CutPrefix(function, module)
	return ok && (strings.HasPrefix(rest, "rdma") || strings.HasPrefix(rest, "generated/") ||
		strings.HasPrefix(rest, "runtime"))
}
