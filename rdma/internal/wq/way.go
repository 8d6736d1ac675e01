// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"fmt"
	"os"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// EnvCall is the environment variable that forces one way to call every queue whose options do not: blocking, system or
// exclusive.
const EnvCall = "GOVERBS_CALL"

// slot is a function of a provider's, the object that it is called with, and how.
type slot struct {
	fn       uintptr
	object   uintptr
	shared   runtime.Way // how any number of goroutines may call it
	way      runtime.Way // how an exclusive handle may
	provider string
}

// newSlot decides how a slot is called. verb is what a provider must do in user space alone, name its name in C.
func newSlot(fn ibv.FuncPtr, verb Verbs, name string, o *QueueOptions) (slot, error) {
	s := slot{fn: uintptr(fn)}
	if o.Path != nil { // which is called as it is
		s.provider = software
		return s, nil
	}
	if fn == 0 {
		return s, &runtime.NotSupportedError{Function: name, Missing: "the device's provider does not have it"}
	}
	forced, from := o.Way, "QueueOptions.Way"
	if forced == "" {
		forced, from = os.Getenv(EnvCall), EnvCall
	}
	s.provider = providerOf(s.fn)
	if forced != "" {
		w, err := parseWay(forced)
		if err != nil {
			return s, fmt.Errorf("rdma: %s: %w", from, err)
		}
		s.way = w
	} else if pure(s.provider, verb, o.Providers) {
		s.way = runtime.Exclusive
	}
	s.shared = min(s.way, runtime.System)
	return s, nil
}

// missing says why a slot of an extended object cannot be called, or gives nil. Objects of older libraries are too
// short for some slots: what stands there is something else.
func missing(fn ibv.FuncPtr, name, object string) error {
	since := ""
	for _, f := range libibverbs.NewSlots {
		switch {
		case f.Name != name:
		case fn != 0:
			return f.Has(uintptr(fn))
		default:
			since = f.Since
		}
	}
	if fn != 0 {
		return nil
	}
	return &runtime.NotSupportedError{Function: name, Missing: object + " lacks the function: it was created " +
		"without it", Since: since}
}

// errnoOf is the number of the error that a call gave. Some old libraries give -1, which says nothing.
func errnoOf(result int32) runtime.Errno {
	switch {
	case result == -1:
		return eio
	case result < 0:
		return runtime.Errno(-int64(result))
	}
	return runtime.Errno(result)
}

// parseWay parses the name of a way.
func parseWay(name string) (runtime.Way, error) {
	var known []string
	for w := runtime.Blocking; w <= runtime.Exclusive; w++ {
		if w.String() == name {
			return w, nil
		}
		known = append(known, w.String())
	}
	return runtime.Blocking, fmt.Errorf("%q is not a way to call C; use one of %s", name, strings.Join(known, ", "))
}
