// SPDX-License-Identifier: BSD-2-Clause

// Package freebsd compares generated/freebsd, and the model from which it is generated, with clang for FreeBSD's targets
// and with Go's package syscall. Nothing here runs on FreeBSD.
package freebsd
