// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux && !windows

package udp

import (
	"errors"

	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
)

func full(err error) bool    { return errors.Is(err, errnos.ENOBUFS) || errors.Is(err, errnos.EAGAIN) }
func tooLong(err error) bool { return errors.Is(err, errnos.EMSGSIZE) }

func named(err error) error { return err }
