// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package explain

// errnos knows nothing: what there is to say is about Linux's verbs.
func errnos([]string) All { return nil }
