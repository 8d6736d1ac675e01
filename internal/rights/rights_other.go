// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Package rights reports whether a program has elevated privileges, so that it must not trust its environment.
package rights

import "os"

// More returns false, because only Linux provides this information.
func More() bool { return false }

// Getenv is os.Getenv.
func Getenv(name string) string { return os.Getenv(name) }
