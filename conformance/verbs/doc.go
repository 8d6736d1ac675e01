// SPDX-License-Identifier: BSD-2-Clause

// Package verbs tests the generated packages of functions: that every function exists, returns an error without its
// library, and works with it.
package verbs
