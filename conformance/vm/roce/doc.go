// SPDX-License-Identifier: BSD-2-Clause

// Package roce tests the packets of the software device against Soft-RoCE: every operation and every error, in both
// directions, between a device in a separate network namespace and one of the guest's kernel.
//
//	go run ./conformance/vm/cmd/vmtest -- ./conformance/vm/roce
package roce
