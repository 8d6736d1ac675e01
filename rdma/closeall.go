package rdma

import "github.com/goverbs/goverbs/rdma/internal/life"

// Object is a [Device] or any object that comes from one. It exists in C until it is closed.
type Object interface {
	Close() error
	itself() *object
}

func (o *object) itself() *object { return o }

func livesOf(all []Object) []*life.Life {
	own := make([]*life.Life, len(all))
	for i, o := range all {
		own[i] = &o.itself().life
	}
	return own
}

// CloseAll closes objects that may need one another, in whatever order they are given. Children are closed before their
// parents; objects that do not need one another are closed in the given order. If objects outside the list need one of
// them, CloseAll closes none; the error names them, and errors.Is finds [ErrInUse]. After that check and before the
// first object is destroyed, CloseAll calls ready, which may be nil; an error of ready keeps all objects open. If C
// refuses to destroy an object, those before it are closed, and the error names them; the others stay open. CloseAll
// skips closed objects, and waits for calls under way.
func CloseAll(ready func() error, all ...Object) error { return life.Close(ready, livesOf(all)...) }

// Needed returns the error that CloseAll would return because others need an object, or nil. It closes and wakes
// nothing.
func Needed(all ...Object) error { return life.Needed(livesOf(all)...) }
