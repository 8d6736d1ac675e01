// SPDX-License-Identifier: BSD-2-Clause

// Package suites runs unmodified third-party test suites and programs on the drop-in libraries, and on Soft-RoCE in
// guests: ibverbs-utils, rdmacm-utils, perftest, qperf, pyverbs and others. They are installed from the Debian archive
// in the versions that cases/NAME.txt pins; this repository has no copies.
//
//	make suites                           # all of them
//	make suites SUITES=qperf              # one, or a comma-separated list
//	make suites KERNEL=6.1                # those with a line @ rxe, on Soft-RoCE of a kernel
//	go run ./conformance/suites/cmd/suites -update
//
// cases/NAME.txt lists the cases of a suite. results/NAME.txt has the expected result of each on the software device,
// and results/rxe-KERNEL/NAME.txt on Soft-RoCE: pass, skip with the suite's reason, or fail with our explanation. A
// different result is an error, and so is a row whose case passes or does not exist. docs/suites.md is generated from
// the results.
package suites
