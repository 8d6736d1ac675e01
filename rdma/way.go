package rdma

import (
	"fmt"
	"os"

	"github.com/goverbs/goverbs/runtime"
)

// slot is a function of a provider's, the object that it is called with, and how.
type slot struct {
	fn       uintptr
	object   uintptr
	way      runtime.Way // the fastest that is allowed
	provider string
}

// EnvCall is the environment variable that forces one way to call every queue whose options do not: blocking, system or exclusive.
const EnvCall = "GOVERBS_CALL"

// newSlot decides how a slot is called. verb is what a provider must do in user space alone.
func newSlot(fn, object uintptr, verb Verbs, name string, o *callOptions) (slot, error) {
	s := slot{fn: fn, object: object, provider: providerOf(fn)}
	if fn == 0 {
		return s, &runtime.NotSupportedError{Function: name, Missing: "the device's provider does not have it"}
	}
	forced, from := o.way, "option Way"
	if forced == "" {
		forced, from = os.Getenv(EnvCall), EnvCall
	}
	if forced != "" {
		w, err := runtime.ParseWay(forced)
		if err != nil {
			return s, fmt.Errorf("rdma: %s: %w", from, err)
		}
		s.way = w
		return s, nil
	}
	if pure(s.provider, verb, o.providers) {
		s.way = runtime.Exclusive
	}
	return s, nil
}

// shared is how any number of goroutines may call the slot.
func (s *slot) shared() runtime.Way { return min(s.way, runtime.System) }

type callOptions struct {
	way       string
	providers []Provider
}
