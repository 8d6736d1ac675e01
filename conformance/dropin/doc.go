// SPDX-License-Identifier: BSD-2-Clause

// Package dropin builds the drop-in libraries and runs C programs with them: unmodified Debian programs, and some with
// behavior that is difficult for Go libraries.
package dropin
