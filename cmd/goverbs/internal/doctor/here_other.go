// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package doctor

import (
	"context"
	"errors"
	"time"
)

// Here is this host: only Linux has what the doctor looks at.
func Here(context.Context, time.Duration) (*Host, error) {
	return nil, errors.New("goverbs doctor knows Linux alone; devices in software work here, too: goverbs devices")
}
