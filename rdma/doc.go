// Package rdma has RDMA's objects, with lifetimes, and the queues and prepared work in them.
//
// A [Device] is opened by name; everything else comes from it, directly or through a [PD]: memory regions ([MR]), completion queues
// ([CQ]) with channels to wait ([CompChannel]), queue pairs ([QP]), and more. Attributes are C's structures. docs/guide.md begins at
// the beginning, docs/guide-libibverbs.md is for those who know libibverbs.
//
// A [SendBatch] or [RecvBatch] is a chain of work requests outside the garbage collector's memory. It is built once, or anew for
// each post; what changes is patched in place; a [SendQueue] or [RecvQueue] posts the whole chain in one call.
// A [CompletionQueue] polls into memory of the caller's. None of these allocates.
//
// Extended queues are used by programs: a [WRProgram] is a region from ibv_wr_start to ibv_wr_complete, a [PollProgram] one from
// ibv_start_poll to ibv_end_poll. The provider holds a lock in them, so each runs as one call.
//
// # What holds unless it is said otherwise
//
// Any number of goroutines may use an object at once; a batch, a program and an exclusive handle are for one at a time. What is made, changed,
// asked for or closed enters the kernel, mostly, and takes as long as that does: it takes no context, and nothing ends it early. Posting and
// polling wait for nobody but others who post or poll. What waits for something to happen has Wait in its name, or is [QP.Drain] or
// [Device.Event], and takes a context.
//
// Attributes are read during the call and copied: they remain the caller's, as does what a method gives in a structure. What C, CEx and Ptr
// give belongs to the object, and ends with it. Attributes name other objects by their addresses, which Ptr gives: a closed object's address may
// be that of a newer one soon, so ask for it when it is needed.
//
// Sizes are bytes. Numbers, keys and addresses are in host byte order, but for the types that say so: [ibv.BE16], [ibv.BE32], [ibv.BE64] and
// [ibv.GID]. What one side reads and writes of the memory of another is bytes, in whatever order they agree on.
//
// Errors are a [*VerbError], of posts a [*PostError], and of completions a [*CompletionError]. errors.Is finds the errno, [ErrClosed], [ErrInUse]
// and runtime.ErrNotSupported in them: of a library, a device or a kernel that does not have something. What is wrong with attributes is looked
// for when the device has refused them. Nothing panics but slicing out of bounds, a nil object or structure, and an exclusive handle in
// another goroutine.
//
// # Checked and unchecked
//
// A queue checks what it posts before the call, and counts its slots, unless [QueueOptions].Unchecked says that it shall not.
// A checked queue returns an error that names the request, the rule and what would be valid, where an unchecked one
// leaves it to the provider to notice, or not to.
//
// # Three ways to call
//
// A queue is called on the thread's system stack when its provider is known to post and poll in user space alone, and else in
// the way that tells Go's scheduler; see [Providers]. Exclusive gives a handle for one goroutine, on a stack of its own.
// The environment variable GOVERBS_CALL and [QueueOptions].Way force one way for every queue, or for one.
//
// Two settings need the blocking way, because C may then wait where Go's scheduler is not told: MLX5_FREEZE_ON_ERROR_CQE, under which
// libmlx5 sleeps for ever after a failed completion; and a stderr that is a pipe which the process itself reads, as what providers
// print of failures may fill it.
package rdma
