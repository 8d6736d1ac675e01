// SPDX-License-Identifier: BSD-2-Clause

// Package printing tests that values of the generated packages print readably and can be parsed again. It compares with
// the C library and the packages netip and encoding/json.
package printing
