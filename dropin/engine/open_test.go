// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

// TestNextAddress checks that without GOVERBS_DEVICE, addresses in use are skipped, and that soft0 has no wire after
// other errors or if the search takes too long.
func TestNextAddress(t *testing.T) {
	var tried []string
	opens := func(errs ...error) func(netip.Addr) (*soft.Fabric, error) {
		tried = nil
		return func(at netip.Addr) (*soft.Fabric, error) {
			tried = append(tried, at.String())
			if n := min(len(tried), len(errs)); errs[n-1] != nil {
				return nil, fmt.Errorf("open: %w", errs[n-1])
			}
			return soft.New(soft.Options{})
		}
	}
	const inUse, notAvailable = syscall.EADDRINUSE, syscall.EADDRNOTAVAIL
	for _, c := range []struct {
		errs  []error
		limit time.Duration
		tries int
	}{
		{[]error{nil}, time.Hour, 1}, {[]error{inUse, inUse, nil}, time.Hour, 3},
		{[]error{inUse, notAvailable}, time.Hour, 2},
		{[]error{inUse}, time.Hour, 250}, {[]error{inUse}, 0, 1},
	} {
		f, err := firstFree(opens(c.errs...), c.limit)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		assert.Len(t, tried, c.tries)
		assert.Equal(t, fmt.Sprintf("127.0.0.%d", c.tries), tried[c.tries-1])
	}
}
