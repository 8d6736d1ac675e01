// SPDX-License-Identifier: BSD-2-Clause

// Package zero calls the exported API with nil and zero values.
package zero
