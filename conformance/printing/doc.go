// SPDX-License-Identifier: BSD-2-Clause

// Package printing proves how values of the generated packages print, and that what they print is read back. Judges are
// the C library, and the packages netip and encoding/json.
package printing
