// SPDX-License-Identifier: BSD-2-Clause

// Package kernel implements native.Kernel with the emulated kernel of conformance/provider: it calls the functions of
// the library that is preloaded into the process.
package kernel
