// SPDX-License-Identifier: BSD-2-Clause

// Package zero calls what the packages for programs export with nil and with zero values.
package zero
