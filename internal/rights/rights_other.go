// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Package rights knows whether a program has more rights than its user, whose environment it must then not trust.
package rights

import "os"

// More is false: only Linux says it.
func More() bool { return false }

// Getenv is os.Getenv.
func Getenv(name string) string { return os.Getenv(name) }
