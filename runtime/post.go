package runtime

import "unsafe"

// Chain is what a [Poster] needs to know of a list of work requests. The work requests themselves lie in memory that the garbage
// collector does not own. A Chain is for one goroutine at a time.
type Chain struct {
	First  uintptr  // address of the first work request
	Bad    *uintptr // where C says which request it refused; outside Go's heap
	Len    int      // requests of the list
	Closed int      // how many requests the next pointers lead through; a Chain with another Len is not posted as it is
	result int32    // C's, of a failed post
}

// Poster posts chains with one C function: post_send, post_recv and their like, bound to their queue. The usual case is a few
// instructions, which are in assembly so that Post can be inlined; everything else is a Go function of the queue's.
type Poster struct {
	fn, object uintptr // fn is 0 where only Unusual posts
	stack      *Stack  // of an exclusive poster; nil for one that every goroutine may use
	// Unusual posts where the usual way is not open: the chain is not closed, the goroutine is not the owner yet, the function
	// is not to be called on these stacks at all. It makes the call by other means, or says why not.
	Unusual func(*Chain) error
	// Failed says what a result of C other than 0 means.
	Failed func(c *Chain, result int32) error
}

// NewPoster binds a function for any number of goroutines at once, each with a Chain of its own. usual says that the function
// may be called the System way; otherwise, and where it is a software backend's, every post is Unusual's.
func NewPoster(fn, object uintptr, usual bool) Poster {
	if !usual || !direct || inSpace(fn) {
		fn = 0
	}
	return Poster{fn: fn, object: object}
}

// NewPosterOn binds a function for the owner of a private stack. Before the stack has an owner, posts are Unusual's, and calling
// on the stack makes the goroutine its owner.
func NewPosterOn(s *Stack, fn, object uintptr, usual bool) Poster {
	if !usual || !direct || inSpace(fn) {
		s = unowned
	}
	return Poster{fn: fn, object: object, stack: s}
}

// unowned is a stack that no goroutine can own.
var unowned = &Stack{}

// Post posts the chain. Where C took it, nil comes back after no more than the call.
func (p *Poster) Post(c *Chain) error { return postShared(p, c) }

// PostOwned is Post for a Poster of NewPosterOn.
func (p *Poster) PostOwned(c *Chain) error { return postExclusive(p, c) }

// postFailed is where the assembly goes when C did not take the chain.
func postFailed(p *Poster, c *Chain) (err error) { return p.Failed(c, c.result) }

// postUnusual is where the assembly goes before it has called anything.
func postUnusual(p *Poster, c *Chain) (err error) { return p.Unusual(c) }

// Poller polls with one C function, bound to its completion queue.
type Poller struct {
	fn, object uintptr
	stack      *Stack
	// Unusual polls where the usual way is not open, as [Poster.Unusual] posts. Its result is C's.
	Unusual func(n int, wcs unsafe.Pointer) int
}

// NewPoller binds poll_cq for any number of goroutines, as [NewPoster] does.
func NewPoller(fn, object uintptr, usual bool) Poller {
	p := NewPoster(fn, object, usual)
	return Poller{fn: p.fn, object: p.object}
}

// NewPollerOn binds poll_cq for the owner of a private stack, as [NewPosterOn] does.
func NewPollerOn(s *Stack, fn, object uintptr, usual bool) Poller {
	p := NewPosterOn(s, fn, object, usual)
	return Poller{fn: p.fn, object: p.object, stack: p.stack}
}

// Poll polls up to n completions into memory that is not on a goroutine's stack, and gives C's result: how many there were,
// or a negative number.
func (p *Poller) Poll(n int, wcs unsafe.Pointer) int { return pollShared(p, n, wcs) }

// PollOwned is Poll for a Poller of NewPollerOn.
func (p *Poller) PollOwned(n int, wcs unsafe.Pointer) int { return pollExclusive(p, n, wcs) }

func pollUnusual(p *Poller, n int, wcs unsafe.Pointer) (found int) { return p.Unusual(n, wcs) }
