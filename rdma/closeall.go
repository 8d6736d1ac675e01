package rdma

import "github.com/goverbs/goverbs/rdma/internal/life"

// Object is what a [Device] or anything that comes from one is: something that lives in C until it is closed.
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

// CloseAll closes objects that may need one another, whatever order they are given in: children go before their parents, and what does not need
// one another goes in the given order. It is all of them, or none while others need one, which the error then says, and errors.Is finds
// [ErrInUse] in. ready, which may be nil, is called when that cannot happen any more, before the first is destroyed; its error keeps them all
// open. Where C refuses to destroy one, those before it are closed, which the error names, and the others stay open. Closed ones are passed
// over. CloseAll waits for calls under way.
func CloseAll(ready func() error, all ...Object) error { return life.Close(ready, livesOf(all)...) }

// Needed is the error that CloseAll would give of objects that others need, or nil: it closes nothing, and wakes nobody.
func Needed(all ...Object) error { return life.Needed(livesOf(all)...) }
