// SPDX-License-Identifier: BSD-2-Clause

// Package interop tests rdma-core's programs against the examples in a guest:
//
//	go run ./conformance/vm/cmd/vmtest -with ./examples/... -- ./conformance/vm/interop
//
// and goverbs perf against perftest: make vm WHAT=perftest.
package interop
