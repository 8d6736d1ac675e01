// SPDX-License-Identifier: BSD-2-Clause

// Package interop has the tests in which programs of rdma-core and the examples talk to each other, in a guest:
//
//	go run ./conformance/vm/cmd/vmtest -with ./examples/... -- ./conformance/vm/interop
//
// and those in which goverbs perf measures with perftest: make vm WHAT=perftest.
package interop
