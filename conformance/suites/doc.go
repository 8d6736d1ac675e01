// SPDX-License-Identifier: BSD-2-Clause

// Package suites runs test suites and programs of others, unmodified, on the drop-in libraries, and on Soft-RoCE in
// guests: ibverbs-utils, rdmacm-utils, perftest, qperf, pyverbs, and more. They come from the Debian archive, in the
// versions that cases/NAME.txt pins; nothing of them is in this repository.
//
//	make suites                           # all of them
//	make suites SUITES=qperf              # one, or more with commas between
//	make suites KERNEL=6.1            # those with a line @ rxe, on Soft-RoCE of a kernel
//	go run ./conformance/suites/cmd/suites -update
//
// cases/NAME.txt lists the cases of a suite. results/NAME.txt says how each of them ends on the software device, and
// results/rxe-KERNEL/NAME.txt on Soft-RoCE: pass, skip with the reason that the suite gives, or fail with our reason.
// A case that ends otherwise is an error, and so are a row whose case now passes and one whose case no longer exists.
// docs/suites.md is made from the results.
package suites
