// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package stats

import "errors"

// Answer is a program's report.
type Answer struct {
	PID uint32
	UID uint32
	*Report
}

// Ask fails, because only Linux's kernel identifies the peer.
func Ask(dir string) ([]Answer, []error) {
	return nil, []error{errors.New("counters can be queried on Linux only")}
}
