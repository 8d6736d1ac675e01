// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package fd

import (
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// Commands is the file that an open device is known by. There is none here.
type Commands struct{}

// NewCommands makes none.
func NewCommands() (*Commands, runtime.Errno) { return &Commands{}, 0 }

// TakeCommands is for a descriptor that the program gives.
func TakeCommands(file int32) *Commands { return &Commands{} }

// WhyNoCommands is the error for a descriptor that is of no open device here.
func WhyNoCommands(file int32) runtime.Errno { return syscall.EOPNOTSUPP }

// Descriptor is −1.
func (c *Commands) Descriptor() int32 { return -1 }

// Close does nothing.
func (c *Commands) Close() {}
