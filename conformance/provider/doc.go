// SPDX-License-Identifier: BSD-2-Clause

// Package provider runs the provider libraries of rdma-core, unmodified as built by Debian, without an adapter. A
// preloaded C library (directory c) emulates the kernel and a device that moves data between the queue pairs of one
// process. Filling queues, ringing doorbells and calling the kernel are done by the real library, called from C and
// from Go.
//
// The tests cover bytes, calls and their cost. Doorbells are ordinary memory, so the tests cannot cover a real adapter,
// PCIe, or missing memory barriers.
//
// mlx5: RC, UC, UD and XRC queue pairs and dynamic connections with every operation, memory windows, shared receive
// queues, completion queues (events, extended, resizing), and small messages inside completions. Unsupported commands
// fail with a message on standard error: "emulated mlx5: command 37: not emulated". A wrong access key of a dynamic
// connection is answered like a wrong remote key, which is a guess.
//
// rdma_cm: the connection manager's device file, on which librdmacm runs unmodified. It connects reliable queue pairs
// between IP addresses of the device, both ends in one process, without losses or delays. There are no datagrams,
// multicast groups or InfiniBand addresses.
//
// mlx5 with an InfiniBand port: shared receive queues with tag matching, including operations on the tag list, expected
// and unexpected messages, and rendezvous. A new tag waits until the program has seen all unexpected messages, as in
// rdma-core's documentation. Two behaviors are guesses: a message that is too long for its tag breaks its queue pair,
// and if announced data cannot be read, the receive fails with IBV_WC_TM_RNDV_INCOMPLETE.
//
// EFA: unreliable and scalable reliable datagrams, inline data, reads and writes, unsolicited immediate data, events,
// errors, 80 bytes inside a request, completion queues with two parts, and completion counters. A datagram that waits
// for its receiver does not block others. Behavior that libefa's source does not determine is a guess: that a queue
// pair survives failed requests, the timeout for a receiver that is not ready, and the result of a receive that is too
// short.
//
// mlx4: RC, UC and UD queue pairs with every operation, windows, shared receive queues, and completion queues,
// including events and resizing. XRC and RSS are missing.
//
// erdma: RC queue pairs with every operation, and events. The error statuses are guesses. The provider does not reset
// its counters, so a queue pair cannot return to RESET, and it rejects requests in ERR, so Drain posts its send
// marker before the queue pair enters ERR.
//
// The emulation is validated by pyverbs' own tests and by the programs of ibverbs-utils and perftest. A server and its
// client run as two processes in one address space (testdata/twins.c), because the adapter moves data within one.
// conformance/suites/results/emulated has the results.
//
// mana, irdma, bnxt_re and hns are idle: their providers open them, create objects of a reliable connection and fill
// its queues, but nothing processes them, and no completion is ever written.
//
// The tests run package native on the same emulated kernel, in process (package kernel), and compare it with libmlx5.
//
// testdata/posting.csv has the stack usage and the number of system calls of each call. Package table generates the
// table of rdma/internal/provider from it.
package provider
