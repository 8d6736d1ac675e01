// Package runtime is the call layer under the generated verbs: it opens a shared library, finds its symbols, calls C without
// cgo, and holds memory that the garbage collector does not own. It knows no verb and no structure, and decides no policy:
// which way a queue is called is chosen in rdma.
//
// # Three ways to call
//
// A C function runs on one of three stacks; see [Way]. Blocking tells Go's scheduler first, so that C may sleep or enter the
// kernel. System and Exclusive do not: they cost a few nanoseconds, and C holds the P meanwhile, so they are for
// functions that never block, never enter the kernel and never call back into Go.
//
// # Where it works
//
// linux/amd64 and linux/arm64 in full, with the minor release of Go that a build tag names; linux/loong64, ppc64le and riscv64,
// and other releases of Go, by the slow way alone (every call is Blocking). Elsewhere the package compiles, and what needs a
// library is [ErrNotSupported].
package runtime
