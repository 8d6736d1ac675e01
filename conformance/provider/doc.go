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
package provider
