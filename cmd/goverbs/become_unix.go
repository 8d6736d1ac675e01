// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"
)

// become runs a program instead of this one, as the same process, so that a signal to goverbs reaches it.
func (o output) become(path string) error {
	err := syscall.Exec(path, append([]string{path}, o.args...), os.Environ())
	return fmt.Errorf("%s: %w", path, err)
}
