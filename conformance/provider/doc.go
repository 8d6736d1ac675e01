// SPDX-License-Identifier: BSD-2-Clause

// Package provider runs the libraries that drive adapters, unmodified and as Debian built them, without an adapter:
// over an emulated kernel, a library in C (directory c) that is loaded before them. Its device moves data between
// queue pairs of one process. What a program does with such a library (fill queues, ring doorbells, ask the kernel)
// is then the real library's doing, from C and from Go.
//
// What this shows are bytes, calls, and what they cost a processor. Doorbells are ordinary memory here: nothing is
// said about an adapter, about PCIe, or about barriers that are missing.
//
// There is mlx5: RC, UC, UD and XRC queue pairs with every operation, memory windows, shared receive queues, completion
// queues with events, extended and resized, small messages inside completions. What is not there refuses, and says its
// name on standard error: "emulated mlx5: command 37: not emulated".
//
// And there is the connection manager's device file, on which librdmacm runs unmodified: connections of reliable queue
// pairs between IP addresses of the device, both ends in one process. Nothing of it is lost or late. There are no
// datagrams, groups, or addresses of InfiniBand.
//
// Its port can be one of InfiniBand. Then shared receive queues match tags: operations on the list of tags, messages
// that match one or none, and rendezvous. That a new tag waits until the program has seen every unexpected message is
// how rdma-core's documentation puts it. What becomes of a message that is too long for its tag was guessed (its queue
// pair fails), and of data that was announced and cannot be read (the receive fails with IBV_WC_TM_RNDV_INCOMPLETE).
//
// And there is EFA: unreliable and scalable reliable datagrams, inline, reads and writes, with immediate data that may
// come unsolicited, events, errors; 80 bytes inside a request, completion queues of two parts, completion counters.
// Datagrams that wait for their receiver are passed by others. What the adapter does that no source of libefa shows was
// guessed: that a queue pair outlives its failed requests, how long a receiver that is not ready is waited for, and
// what becomes of a receive that is too short.
//
// And mlx4: RC, UC and UD queue pairs with every operation, windows, shared receive queues, completion queues with
// events, resized. There are no extended connections, and no RSS.
//
// And erdma: RC queue pairs with every operation, and events. Which status it gives to which failure was guessed. Its
// provider counts on where it was, so that a queue pair cannot go back to RESET, and takes no request in the state of
// errors, where a drain posts its markers elsewhere.
//
// Others judge it: pyverbs' own tests, and the programs of ibverbs-utils and perftest. Of those, a server and its
// client are two processes in one address space (testdata/twins.c), for the adapter moves data within one. Results are
// in conformance/suites/results/emulated.
//
// mana, irdma, bnxt_re and hns do nothing: their providers find them, open them, make objects of a reliable
// connection and fill its queues, which nobody works off. No completion is ever written, and none was read.
// testdata/posting.csv has the stack that each call needs, and how often it asked the kernel; the table of
// rdma/internal/provider is made of it (package table).
package provider
