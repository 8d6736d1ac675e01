package soft

import "github.com/goverbs/goverbs/runtime"

// events is a queue of events, with a file that can be read while it has any. It is under the fabric's lock.
type events[T any] struct {
	signal
	queue  []T
	closed bool
}

func (e *events[T]) push(v T) {
	e.queue = append(e.queue, v)
	e.raise()
}

// drop takes events out that nobody will get.
func (e *events[T]) drop(is func(T) bool) {
	kept := e.queue[:0]
	for _, v := range e.queue {
		if is(v) {
			e.lower()
		} else {
			kept = append(kept, v)
		}
	}
	clear(e.queue[len(kept):])
	e.queue = kept
}

// close wakes who waits, and closes the file.
func (e *events[T]) close() {
	e.closed = true
	e.raise()
	e.signal.close()
}

// wait takes the next event, and waits for one unless the file does not block. It is called with the fabric's lock, and gives it up while
// it waits.
func (e *events[T]) wait(f *Fabric) (v T, errno runtime.Errno) {
	for len(e.queue) == 0 {
		if e.closed {
			return v, einval
		}
		if f.clock.virtual && len(f.clock.timers) > 0 {
			f.elapse(f.clock.timers[0].due)
			continue
		}
		if !e.blocks() {
			return v, eagain
		}
		e.sleep(f)
	}
	v, e.queue = e.queue[0], e.queue[1:]
	e.lower()
	return v, 0
}

// reports counts the events of an object that a program got, and those that it acknowledged.
type reports struct{ got, acked uint32 }

// settle waits until all events that the program got are acknowledged: before that an object does not go. The fabric's lock is given
// up while it waits.
func (r *reports) settle(f *Fabric) {
	f.work()
	for r.got != r.acked {
		f.acked.Wait()
	}
}
