// Package runtime is the room for the verbs' call layer: how a C function pointer is called without cgo, how a library is opened
// and a symbol resolved, memory that the garbage collector does not own, and the post-send and poll fast path. It is empty so
// far: generated/ibv needs none of it.
package runtime
