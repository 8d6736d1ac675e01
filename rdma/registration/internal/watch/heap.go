// SPDX-License-Identifier: BSD-2-Clause

package watch

import (
	"reflect"
	"runtime"
	"sync"
)

// OnHeap says whether a byte lies in an object of Go's heap, which stays where it is as long as it is pinned. It is
// false if that cannot be told.
func OnHeap(b *byte) bool { return pinnersTell() && pins(b) == 1 }

// pinnersTell tries pins on memory whose kind is known.
var pinnersTell = sync.OnceValue(func() bool { return pins(&new([64]byte)[1]) == 1 && pins(&noHeap) == 0 })

var noHeap byte

// pins pins a byte for a moment and returns the number of objects that the Pinner then holds: 0 if the byte is not in
// Go's heap, because Pin ignores other memory, and -1 if the Pinner does not have the field that it is expected to
// have.
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
