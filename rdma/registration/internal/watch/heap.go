// SPDX-License-Identifier: BSD-2-Clause

package watch

import (
	"reflect"
	"runtime"
	"sync"
)

// OnHeap reports whether a byte lies in an object of Go's heap, which does not move while it is pinned. It is false if
// unknown.
func OnHeap(b *byte) bool { return pinnersTell() && pins(b) == 1 }

// pinnersTell tests pins on memory of known kinds.
var pinnersTell = sync.OnceValue(func() bool { return pins(&new([64]byte)[1]) == 1 && pins(&noHeap) == 0 })

var noHeap byte

// pins pins a byte briefly and returns the number of objects that the Pinner then holds: 0 if the byte is not in Go's
// heap, because Pin ignores other memory, and -1 if the Pinner lacks the expected field.
func pins(b *byte) (n int) {
	var p runtime.Pinner
	defer func() {
		p.Unpin()
		if recover() != nil { // the byte is in an arena, which the program frees when it likes
			n = -1
		}
	}()
	p.Pin(b)
	refs := reflect.ValueOf(&p).Elem().Field(0).Elem().FieldByName("refs")
	return refs.Len()
}
