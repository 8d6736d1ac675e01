// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package explain

// errnos returns nil, because the explanations are for Linux.
func errnos([]string) All { return nil }
