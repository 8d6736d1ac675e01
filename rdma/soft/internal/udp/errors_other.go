// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux && !windows

package udp

import (
	"errors"
	"syscall"
)

func full(err error) bool    { return errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.EAGAIN) }
func tooLong(err error) bool { return errors.Is(err, syscall.EMSGSIZE) }

func named(err error) error { return err }
