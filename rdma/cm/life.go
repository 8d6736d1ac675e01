package cm

import (
	"sync"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// life is that of an object of C's, under the rules of [rdma.Device].
type life struct {
	mu    sync.Mutex
	idle  sync.Cond
	state lifeState
	users int // calls under way
}

type lifeState uint8

const (
	alive lifeState = iota
	closing
	closed
)

// use says that a call is under way, which closing waits for; done ends it.
func (l *life) use(verb string, name func() string) error {
	if !l.tryUse() {
		return closedError(verb, name())
	}
	return nil
}

// tryUse is use, and says whether the object is alive.
func (l *life) tryUse() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == alive {
		l.users++
	}
	return l.state == alive
}

func (l *life) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 && l.idle.L != nil {
		l.idle.Broadcast()
	}
}

func (l *life) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state != alive
}

// end closes the object: wake ends waits of calls under way, then destroy ends it in C, and says whether it is gone. Where it is not, it lives on.
func (l *life) end(wake func(), destroy func() (gone bool, err error)) error {
	l.mu.Lock()
	l.idle.L = &l.mu
	for l.state == closing {
		l.idle.Wait()
	}
	if l.state == closed {
		l.mu.Unlock()
		return nil
	}
	l.state = closing
	l.mu.Unlock()
	wake()
	l.mu.Lock()
	for l.users > 0 {
		l.idle.Wait()
	}
	l.mu.Unlock()
	gone, err := destroy()
	l.mu.Lock()
	if l.state = alive; gone {
		l.state = closed
	}
	l.idle.Broadcast()
	l.mu.Unlock()
	return err
}

// inUse is the error of closing what others need.
func inUse(object, reason string) error {
	return &rdma.VerbError{Verb: "Close", Object: object, Errno: verberr.EBUSY, Reason: reason, Err: rdma.ErrInUse}
}
