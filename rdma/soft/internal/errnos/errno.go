// SPDX-License-Identifier: BSD-2-Clause

// Package errnos has the numbers of errors that the software device answers with, on systems that lack some, too.
package errnos
