// SPDX-License-Identifier: BSD-2-Clause

// Package rdma provides RDMA verbs as Go objects, with queues and batches of work requests.
//
// [Open] opens a [Device] by name. A Device creates all other objects, directly or through a [PD]: memory regions
// ([MR]), completion queues ([CQ]) with channels to wait on ([CompChannel]), queue pairs ([QP]), and more. Attributes
// are the structures of C. If RDMA is new to you, read docs/guide.md first; if you know libibverbs, read
// docs/guide-libibverbs.md.
//
// A [SendBatch] or [RecvBatch] is a chain of work requests outside the garbage collector's memory. Build it once and
// change fields between posts, or build a new one for each post. A [SendQueue] or [RecvQueue] posts the whole chain in
// one call. A [CompletionQueue] polls into a slice of the caller. None of these allocates.
//
// Extended queues use programs: a [WRProgram] records the calls from ibv_wr_start to ibv_wr_complete, and a
// [PollProgram] those from ibv_start_poll to ibv_end_poll. The provider holds a lock between the first and the last of
// these calls, so each program runs as one call.
//
// # General rules
//
// Any number of goroutines may use an object at once. Only one goroutine at a time may use a batch or a program.
// Methods that create, change, query or close an object usually enter the kernel and block until it has finished. They
// take no context and cannot be canceled. Posting and polling wait only for other posts and polls. Methods that wait
// for an event, such as [CQ.Wait], [QP.Drain] and [Device.Event], take a context.
//
// Methods copy the attributes that they are given, so these remain the caller's, and so do returned structures. The
// results of C, CEx and Ptr belong to the object and are valid until it is closed. Attributes refer to other objects by
// address; Ptr returns it. A new object may reuse the address of a closed one, so call Ptr each time and do not store
// the result.
//
// Sizes are in bytes. Numbers, keys and addresses are in host byte order, except for the big-endian types [ibv.BE16],
// [ibv.BE32], [ibv.BE64] and [ibv.GID]. RDMA transfers bytes; their meaning and order are up to the program.
//
// Errors are of type [*VerbError], those of posts of type [*PostError], and those of completions of type
// [*CompletionError]. errors.Is matches the errno, [ErrClosed] and [ErrInUse], and [ErrNotSupported] if a library, a
// device or a kernel lacks a feature. Invalid attributes are diagnosed only after the device has rejected them.
//
// Methods of a zero object return an error, and so do functions that are called with a nil object, batch or program.
// The package panics only for slicing out of bounds, a method of nil, a nil context or completion, a nil batch given to
// a [SendQueue] or a [RecvQueue], and zero batches, programs and queues.
//
// # Checked and unchecked
//
// A queue checks work requests before it posts them and counts its slots, unless [QueueOptions].Unchecked is set. A
// checked queue returns an error that names the request, the rule and the valid values. With an unchecked queue, only
// the provider and the device detect mistakes.
//
// # Two ways to call
//
// A provider that posts and polls in user space, or with system calls that do not sleep, is called directly on the
// thread's system stack. Other providers are called like a system call, so that Go's scheduler can run other
// goroutines. See [Providers]. The environment variable GOVERBS_CALL forces one way for every queue, and
// [QueueOptions].Way for one queue.
//
// Two settings need the blocking way, because C may then block a thread that Go's scheduler counts as running:
// MLX5_FREEZE_ON_ERROR_CQE, with which libmlx5 sleeps forever after a failed completion; and a stderr that is a pipe
// read by the process itself, because messages of providers may fill it.
package rdma
