// SPDX-License-Identifier: BSD-2-Clause

// Package rdma provides RDMA objects with lifetimes, their queues, and batches of work requests.
//
// [Open] opens a [Device] by name. Everything else comes from it, directly or through a [PD]: memory regions ([MR]),
// completion queues ([CQ]) with channels to wait on ([CompChannel]), queue pairs ([QP]), and more. Attributes are C's
// structures. If RDMA is new to you, read docs/guide.md first; if you know libibverbs, read docs/guide-libibverbs.md.
//
// A [SendBatch] or [RecvBatch] is a chain of work requests outside the garbage collector's memory. Build it once and
// change fields between posts, or build it anew for each post. A [SendQueue] or [RecvQueue] posts the whole chain in
// one call. A [CompletionQueue] polls into memory of the caller. None of these allocates.
//
// Programs use extended queues: a [WRProgram] is a region from ibv_wr_start to ibv_wr_complete, a [PollProgram] one
// from ibv_start_poll to ibv_end_poll. The provider holds a lock inside the region, so each program runs as one call.
//
// # General rules
//
// Any number of goroutines may use an object at once. A batch and a program are for one goroutine at a time. Methods
// that create, change, query or close an object usually enter the kernel and block until it has finished: they take no
// context and cannot be canceled. Posting and polling wait only for other posts and polls. Methods that wait for an
// event ([CQ.Wait] and the like, [QP.Drain], [Device.Event]) take a context.
//
// A call reads and copies attributes: they remain the caller's, and so does a structure that a method returns. The
// results of C, CEx and Ptr belong to the object and end with it. Attributes name other objects by address, which Ptr
// returns. A new object may soon have the address of a closed one, so call Ptr when you need it.
//
// Sizes are in bytes. Numbers, keys and addresses are in host byte order, except for the big-endian types [ibv.BE16],
// [ibv.BE32], [ibv.BE64] and [ibv.GID]. RDMA transfers bytes; their meaning and order are up to the program.
//
// Errors are of type [*VerbError], errors of posts [*PostError], and errors of completions [*CompletionError].
// errors.Is matches the errno, [ErrClosed] and [ErrInUse], and [ErrNotSupported] if a library, a device or a kernel
// lacks a feature. Attributes are diagnosed after the device has rejected them.
//
// Methods of an object that is the zero value of its type return an error, and so do functions that get a nil object,
// batch or program. The package panics only for slicing out of bounds, a method of nil, a nil context or completion, a
// nil batch given to a [SendQueue] or a [RecvQueue], and batches, programs and queues that no constructor has made.
//
// # Checked and unchecked
//
// A queue checks work requests before the call and counts its slots, unless [QueueOptions].Unchecked is set. A checked
// queue returns an error that names the request, the rule and the valid values. With an unchecked queue, detecting
// mistakes is up to the provider.
//
// # Two ways to call
//
// A provider that posts and polls in user space alone, or in system calls that do not sleep, is called directly on the
// thread's system stack. Others are called like a system call, so that Go's scheduler can run other goroutines. See
// [Providers]. The environment variable GOVERBS_CALL forces one way for every queue, and [QueueOptions].Way for one
// queue.
//
// Two settings need the blocking way, because C may then block a thread that Go's scheduler counts as running:
// MLX5_FREEZE_ON_ERROR_CQE, with which libmlx5 sleeps forever after a failed completion; and a stderr that is a pipe
// read by the process itself, because messages of providers may fill it.
package rdma
