// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "unsafe"

// Chain describes a list of work requests to a [Poster]. The work requests themselves are in memory that the garbage
// collector does not own. One goroutine at a time uses a Chain.
type Chain struct {
	First uintptr  // address of the first work request
	Bad   *uintptr // C stores here which request it refused; outside Go's heap
	Len   int      // number of requests of the list
	// number of requests that the next pointers lead through; a Chain with another Len is not posted as it is
	Closed int
	result int32 // result of a failed post
}

// Poster posts chains with one C function: post_send, post_recv and their like, bound to their queue. The usual case is
// a few assembly instructions, so that Post can be inlined. Everything else goes to the queue, by its [Behind].
type Poster struct {
	direct     uintptr // fn where Post may call it at once; otherwise 0
	fn, object uintptr
	behind     Behind
}

// Behind is the queue of a Poster, for what the Poster does not do by itself.
type Behind interface {
	// PostUnusual posts where the usual way is not open: the chain is not closed, or the queue wants to see each post.
	PostUnusual(*Chain) error
	// PostFailed makes an error of a result of C other than 0.
	PostFailed(c *Chain, result int32) error
}

// Bind binds a function, for any number of goroutines at once, each with its own Chain. direct means that the function
// may be called the System way at once. Without it, and for a function of a software backend, each post goes to behind.
func (p *Poster) Bind(fn, object uintptr, direct bool, behind Behind) {
	p.fn, p.object, p.behind = fn, object, behind
	p.direct = straight(fn, direct)
}

// straight is fn if it may be called the fast way, otherwise 0.
func straight(fn uintptr, may bool) uintptr {
	if !may || !direct || inSpace(fn) {
		return 0
	}
	return fn
}

// Post posts the chain. If C took it, Post returns nil directly after the call.
func (p *Poster) Post(c *Chain) error { return postDirect(p, c) }

// Call calls the function the System way with the chain, which has to be closed, and returns C's result. It is for a
// queue that has seen the post, and has a C function that may be called so.
func (p *Poster) Call(c *Chain) int32 { return postCall(p, c) }

// postFailed is the Go function that the assembly calls when C did not take the chain.
func postFailed(p *Poster, c *Chain) (err error) { return p.behind.PostFailed(c, c.result) }

// postUnusual is the Go function that the assembly calls when it cannot post the usual way. Nothing was called before.
func postUnusual(p *Poster, c *Chain) (err error) { return p.behind.PostUnusual(c) }

// Poller polls with one C function, bound to its completion queue.
type Poller struct {
	direct     uintptr
	fn, object uintptr
	unusual    func(n int, wcs unsafe.Pointer) int
}

// Bind binds poll_cq, as [Poster.Bind] binds post_send. unusual polls where the usual way is not open; its result is
// C's.
func (p *Poller) Bind(fn, object uintptr, direct bool, unusual func(n int, wcs unsafe.Pointer) int) {
	p.fn, p.object, p.unusual = fn, object, unusual
	p.direct = straight(fn, direct)
}

// Poll polls up to n completions into memory that is not on a goroutine's stack. It returns C's result: the number of
// completions, or a negative number.
func (p *Poller) Poll(n int, wcs unsafe.Pointer) int { return pollDirect(p, n, wcs) }

// pollUnusual is the Go function that the assembly calls when it cannot poll the usual way.
func pollUnusual(p *Poller, n int, wcs unsafe.Pointer) (found int) {
	return p.unusual(n, wcs)
}
