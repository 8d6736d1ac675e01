// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Package rights reports whether a program has more rights than its user, whose environment must then not be trusted.
package rights

import "os"

// More returns false: only Linux provides this information.
func More() bool { return false }

// Getenv is os.Getenv.
func Getenv(name string) string { return os.Getenv(name) }
