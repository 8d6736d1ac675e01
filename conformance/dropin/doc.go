// SPDX-License-Identifier: BSD-2-Clause

// Package dropin builds the drop-in libraries and runs programs of C with them: Debian's, which nobody wrote for them,
// and some that do what libraries of Go may not survive.
package dropin
