// SPDX-License-Identifier: BSD-2-Clause

// Package runtime is the call layer below the generated verbs. It opens a shared library, finds its symbols, calls C
// without cgo, and maps memory that the garbage collector does not manage. It has no knowledge of verbs or structures,
// and no policy: package rdma chooses how to call a queue.
//
// # Two ways to call
//
// Blocking is correct for every function: it informs Go's scheduler first, so that C may sleep or enter the kernel.
// System does not: it costs a few nanoseconds, and the thread keeps its P while C runs. It is only for functions that
// never block and never call back into Go. See [Way].
//
// # Supported systems
//
// On linux/amd64 and linux/arm64, System is available with the minor release of Go that a build tag names. On
// linux/loong64, ppc64le and riscv64, and with other releases of Go, every call is Blocking. On other systems the
// package compiles, and everything that needs a library returns [ErrNotSupported].
//
// With the build tag goverbs_static, a Linux program behaves like one on those other systems, and is linked statically
// if cgo is off. Software backends work in it.
package runtime
