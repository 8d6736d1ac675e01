// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package doctor

import (
	"context"
	"errors"
	"time"
)

// Here returns an error: the doctor needs Linux.
func Here(context.Context, time.Duration) (*Host, error) {
	return nil, errors.New("goverbs doctor needs Linux; on this system, use software devices (goverbs devices)")
}
