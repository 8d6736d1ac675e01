// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"encoding/json"
	"runtime/debug"
	"strconv"
	"sync"
)

// line is a JSON object under construction.
type line struct{ b []byte }

var lines = sync.Pool{New: func() any { return new(line) }}

func newLine() *line {
	l := lines.Get().(*line)
	l.b = append(l.b[:0], '{')
	return l
}

func (l *line) free() {
	if cap(l.b) <= 64<<10 {
		lines.Put(l)
	}
}

func (l *line) key(name string) {
	if last := l.b[len(l.b)-1]; last != '{' {
		l.b = append(l.b, ',')
	}
	l.b = append(l.b, '"')
	l.b = append(l.b, name...)
	l.b = append(l.b, '"', ':')
}

func (l *line) number(name string, v uint64) {
	l.key(name)
	l.b = strconv.AppendUint(l.b, v, 10)
}

// address writes a 64-bit number as a string, because some JSON readers lose bits of large numbers.
func (l *line) address(name string, v uint64) {
	l.key(name)
	l.b = append(l.b, '"', '0', 'x')
	l.b = strconv.AppendUint(l.b, v, 16)
	l.b = append(l.b, '"')
}

func (l *line) text(name, v string) {
	l.key(name)
	text, err := json.Marshal(v)
	if err == nil {
		l.b = append(l.b, text...)
	}
}

// list begins an array of objects. open and close begin and end each object, and end ends the array.
func (l *line) list(name string) {
	l.key(name)
	l.b = append(l.b, '[')
}

func (l *line) open() {
	if last := l.b[len(l.b)-1]; last != '[' {
		l.b = append(l.b, ',')
	}
	l.b = append(l.b, '{')
}

func (l *line) close() { l.b = append(l.b, '}') }
func (l *line) end()   { l.b = append(l.b, ']') }

// ignoreFaults calls read, which reads the program's memory, and ignores faults, because the traced call itself reports
// memory that is not mapped.
func ignoreFaults(read func()) {
	defer func() { _ = recover() }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	read()
}
