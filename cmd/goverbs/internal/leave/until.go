// SPDX-License-Identifier: BSD-2-Clause

package leave

import (
	"context"
	"errors"
)

// Until runs do until ctx ends. If closing may then take the kernel's connection manager long, it leaves the
// descriptors to a second process and returns, and the caller must exit.
func Until(ctx context.Context, do func(ctx context.Context) error) error {
	doing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	done := make(chan error, 1)
	go func() { done <- do(doing) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	if left, err := Manager(); left {
		return errors.Join(ctx.Err(), err)
	}
	end()
	return <-done
}
