// SPDX-License-Identifier: BSD-2-Clause

// Package made notes where a program makes an object, for reports of what it has not closed.
package made

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Place is where an object was made: the calls that led there.
type Place []uintptr

// most is how many calls are noted. The program's own are behind those of this module.
const most = 48

// Here notes the calls that lead to the caller.
func Here() Place {
	calls := make(Place, most)
	return calls[:runtime.Callers(3, calls)]
}

// module begins the names of functions that are not the program's.
const module = "github.com/goverbs/goverbs/"

// String returns the innermost call that is the program's: "shelf/server.go:12 (main.serve)". Where a goroutine of this
// module made the object, it is the goroutine's function.
func (p Place) String() string {
	if len(p) == 0 {
		return "an unknown place"
	}
	last := ""
	for frames := runtime.CallersFrames(p); ; {
		f, more := frames.Next()
		ours := isOurs(f.Function) && !strings.HasSuffix(f.File, "_test.go")
		if text := text(f); !ours && !strings.HasPrefix(f.Function, "runtime.") {
			return text
		} else if ours {
			last = text
		}
		if !more {
			return last
		}
	}
}

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
