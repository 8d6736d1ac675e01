// SPDX-License-Identifier: BSD-2-Clause

// Package kernel is the emulated kernel of conformance/provider for package native: it calls the functions of the
// preloaded library in the process.
package kernel
