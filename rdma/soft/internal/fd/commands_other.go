// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package fd

import (
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// Commands identifies an open device. On this system there is no file.
type Commands struct{}

func NewCommands() (*Commands, runtime.Errno) { return &Commands{}, 0 }

// TakeCommands ignores a descriptor of the program.
func TakeCommands(file int32) *Commands { return &Commands{} }

// WhyNoCommands returns the errno for a descriptor of no open device.
func WhyNoCommands(file int32) runtime.Errno { return syscall.EOPNOTSUPP }

// Descriptor returns −1.
func (c *Commands) Descriptor() int32 { return -1 }

// Close does nothing.
func (c *Commands) Close() {}
