// SPDX-License-Identifier: BSD-2-Clause

// Package errnos defines the errnos of the software device, including those that some systems lack.
package errnos
