// SPDX-License-Identifier: BSD-2-Clause

package watch

import (
	"reflect"
	"runtime"
	"sync"
)

// OnHeap reports whether a byte belongs to an object of Go's heap, which does not move while it is pinned. It returns
// false if that cannot be determined.
func OnHeap(b *byte) bool { return pinnersTell() && pins(b) == 1 }

// pinnersTell reports whether pins gives correct results for known memory.
var pinnersTell = sync.OnceValue(func() bool { return pins(&new([64]byte)[1]) == 1 && pins(&noHeap) == 0 })

var noHeap byte

// pins pins a byte briefly and returns the number of objects that the Pinner then holds: 0 if the byte is not on Go's
// heap, because Pin ignores other memory, and -1 if the Pinner lacks the expected field.
func pins(b *byte) (n int) {
	var p runtime.Pinner
	defer func() {
		p.Unpin()
		if recover() != nil { // the byte is in an arena, which the program may free at any time
			n = -1
		}
	}()
	p.Pin(b)
	refs := reflect.ValueOf(&p).Elem().Field(0).Elem().FieldByName("refs")
	return refs.Len()
}
