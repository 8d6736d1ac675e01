package runtime

import (
	"fmt"
	"slices"
	"sync"
)

// frames are on the heap: C may call back into Go, which may move the goroutine's stack.
var frames = sync.Pool{New: func() any { return new(frame) }}

// call calls the function at fn, or the exported one when fn is 0.
func (f *Function) call(fn uintptr, args []uintptr) (result uintptr, errno Errno, err error) {
	for i, a := range args {
		if f.Pointers&(1<<i) != 0 && inSpace(a) {
			if s := spaceOf(a); s != nil {
				return f.software(s.Backend, fn, args)
			}
		}
	}
	switch {
	case inSpace(fn):
		return f.software(nil, fn, args)
	case fn == 0:
		if fn, err = f.find(); err != nil {
			return 0, 0, err
		}
	}
	if len(args) > MaxArgs {
		panic(fmt.Sprintf("goverbs: %s: a function takes %d arguments at most, not %d", f.Name, MaxArgs, len(args)))
	}
	fr := frames.Get().(*frame)
	*fr = frame{fn: fn, errnoLocation: errnoLocation()}
	copy(fr.args[:], args)
	fr.run()
	result = fr.result
	errno = Errno(max(int32(fr.errno), 0)) // some functions leave a negative number there, which is no errno
	frames.Put(fr)
	return result, errno, nil
}

// software calls a function of a software backend: the one that a slot's address stands for, or the backend's by its name.
func (f *Function) software(b Backend, fn uintptr, args []uintptr) (uintptr, Errno, error) {
	if inSpace(fn) {
		var a [6]uintptr
		copy(a[:], args)
		result, errno := callSpace(fn, &a)
		return result, errno, nil
	}
	stands := b.Function(f.Library.Name, f.Name)
	if stands == nil {
		return 0, 0, &NotSupportedError{Function: f.Name, Missing: "the software device does not have it"}
	}
	result, errno := stands(slices.Clone(args)) // a copy, so that the arguments of a native call need no heap
	return result, errno, nil
}
