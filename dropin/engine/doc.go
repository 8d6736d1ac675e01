// SPDX-License-Identifier: BSD-2-Clause

// The engine of the drop-in libraries: a shared library, built with go build -buildmode=c-shared, with the software
// device of rdma/soft behind three C functions. libibverbs.so.1 of this project opens it when a program first calls a
// verb.
package main

// main is never called: the engine is a library.
func main() {}
