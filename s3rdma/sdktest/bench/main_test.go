// SPDX-License-Identifier: BSD-2-Clause

//go:build linux

package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBench runs a short comparison. Its second server is this process again.
func TestBench(t *testing.T) {
	*rounds, *long, *largest = 1, time.Millisecond, 1
	require.NoError(t, compare())
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-serve" {
		main()
		return
	}
	os.Exit(m.Run())
}
