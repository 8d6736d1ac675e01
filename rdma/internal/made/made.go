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
)

// Place is where an object was made: the calls that led there, or none for what was made by [Shared].
type Place []uintptr

// most is how many calls are noted. The program's own are behind those of this module.
const most = 48

// Here notes the calls that lead to the caller, and if the goroutine works for another one, those of [For].
func Here() Place {
	calls := make(Place, most)
	calls = calls[:runtime.Callers(3, calls)]
	if on, ok := behalf.Load(goroutine()); ok {
		if len(on.(Place)) == 0 {
			return nil
		}
		calls = append(calls, on.(Place)...)
	}
	return calls
}

// behalf has the place that each goroutine of For works for, by goroutine.
var behalf sync.Map

// For runs do, in which objects are made for the program that made the calls of p: a goroutine of this module's own has
// none of the program's calls.
func For(p Place, do func()) {
	own := goroutine()
	if before, nested := behalf.Swap(own, p); nested {
		defer behalf.Store(own, before)
	} else {
		defer behalf.Delete(own)
	}
	do()
}

// Shared runs do, in which objects are made for all connections of a device. The one that comes first makes them, and
// may be closed long before the last one: that one, which is reported itself, keeps them.
func Shared(do func()) { For(nil, do) }

// Made says where an object was made, or that nobody in particular made it.
func (p Place) Made() string {
	if len(p) == 0 {
		return "shared by the IDs and connections of its device, and gone with the last of them"
	}
	return "made at " + p.String()
}

// goroutine returns the line with the number of the goroutine. Go has no other way to tell goroutines apart.
func goroutine() string {
	var b [40]byte
	line, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), "[")
	return line
}

// module begins the names of functions that are not the program's.
const module = "github.com/goverbs/goverbs/"

// String returns the innermost call that is the program's: "shelf/server.go:12 (main.serve)". If there is none, because
// Go's library called this module, it is the call of Go's library; or else the outermost of this module.
func (p Place) String() string {
	last, library := "", ""
	for frames := runtime.CallersFrames(p); ; {
		f, more := frames.Next()
		switch {
		case isOurs(f.Function) && !strings.HasSuffix(f.File, "_test.go"):
			last = text(f)
		case !isGos(f):
			return text(f)
		case !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, "sync."):
			library = cmp.Or(library, text(f))
		}
		if !more {
			return cmp.Or(library, last)
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
	name := f.Function[strings.LastIndex(f.Function, "/")+1:]
	dir, file := filepath.Split(f.File)
	return fmt.Sprintf("%s/%s:%d (%s)", filepath.Base(dir), file, f.Line, name)
}

// isOurs says whether a function is of the packages that programs call.
func isOurs(function string) bool {
	rest, ok := strings.CutPrefix(function, module)
	return ok && (strings.HasPrefix(rest, "rdma") || strings.HasPrefix(rest, "generated/") ||
		strings.HasPrefix(rest, "runtime"))
}
