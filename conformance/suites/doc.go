// SPDX-License-Identifier: BSD-2-Clause

// Package suites runs test suites and programs of others, unmodified, on the drop-in libraries: ibverbs-utils,
// rdmacm-utils, perftest, qperf, pyverbs. They come from the Debian archive, in the versions that cases/NAME.txt pins;
// nothing of them is in this repository.
//
//	make suites                           # all of them
//	make suites SUITES=qperf              # one, or more with commas between
//	go run ./conformance/suites/cmd/suites -update
//
// cases/NAME.txt lists the cases of a suite, and results/NAME.txt how each of them ends: pass, skip with the reason
// that the suite gives, or fail with our reason. A case that ends otherwise is an error, and so are a row whose case
// now passes and one whose case no longer exists. docs/suites.md is made from the results.
package suites
