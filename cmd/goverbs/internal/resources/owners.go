// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unicode"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// owners finds the programs of objects. The kernel reports the thread that created an object, unless it has ended; then
// the program is the one that owns the same context.
func (s *Snapshot) owners(f fs.FS) {
	programs := map[uint32]uint32{} // process of a thread
	for i := range s.Objects {
		if o := &s.Objects[i]; o.Thread != 0 {
			if _, ok := programs[o.Thread]; !ok {
				programs[o.Thread] = program(f, o.Thread)
			}
			o.PID = programs[o.Thread]
		}
	}
	s.assignByContext()
	names := map[uint32]string{}
	for i := range s.Objects {
		if o := &s.Objects[i]; o.PID != 0 {
			if _, ok := names[o.PID]; !ok {
				names[o.PID] = command(f, o.PID)
			}
			o.Owner = names[o.PID]
		}
	}
}

// objectKey identifies an object that others refer to.
type objectKey struct {
	device string
	number uint32
}

// assignByContext assigns objects without a thread to the program of their context.
func (s *Snapshot) assignByContext() {
	domains, programs := map[objectKey]uint32{}, map[objectKey]uint32{}
	for _, o := range s.Objects {
		if o.Kind == "pd" {
			domains[objectKey{o.Device, o.Number}] = o.Ctx
		}
	}
	for i := range s.Objects {
		o := &s.Objects[i]
		if o.Ctx == 0 && o.PD != 0 {
			o.Ctx = domains[objectKey{o.Device, o.PD}]
		}
		if o.Ctx != 0 && o.PID != 0 {
			programs[objectKey{o.Device, o.Ctx}] = o.PID
		}
	}
	for i := range s.Objects {
		if o := &s.Objects[i]; o.PID == 0 && o.Owner == Elsewhere && o.Ctx != 0 {
			o.PID = programs[objectKey{o.Device, o.Ctx}]
		}
	}
}

// program returns the process of a thread, or the thread's ID if that cannot be read.
func program(f fs.FS, thread uint32) uint32 {
	for line := range strings.Lines(sysfs.Text(f, fmt.Sprintf("proc/%d/status", thread))) {
		if text, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32); err == nil {
				return uint32(n)
			}
		}
	}
	return thread
}

// command returns the name of a program, or "".
func command(f fs.FS, pid uint32) string {
	return printable(sysfs.Text(f, fmt.Sprintf("proc/%d/comm", pid)))
}

// printable replaces control characters, since programs choose their names.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}
