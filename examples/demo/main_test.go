// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/csv"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestDemo checks that every operation works on the software device and that its data arrives.
func TestDemo(t *testing.T) {
	o := &options{device: "soft0", peer: "soft1", time: time.Millisecond,
		write: filepath.Join(t.TempDir(), "speeds.csv")}
	require.NoError(t, run(o))
	f, err := os.ReadFile(o.write)
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(f)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, len(operations))
	for _, row := range rows {
		assert.Regexp(t, `^[1-9]\d+$`, row[1], row[0])
	}
	o.baseline, o.only = o.write, "FLUSH"
	require.ErrorIs(t, run(o), os.ErrExist)
	again, err := os.ReadFile(o.write)
	require.NoError(t, err)
	require.Equal(t, f, again)
}

// TestWrongData checks that an operation that delivers wrong bytes is reported.
func TestWrongData(t *testing.T) {
	for i := range operations {
		op := operations[i]
		if op.bytes == 0 || op.name == "FLUSH" {
			continue
		}
		check, at := op.check, 7
		if op.srq == ibv.SRQT_TM {
			at = 40 // after the headers
		}
		broken := false
		op.check = func(s *stage) error {
			if !broken {
				s.a.mr.Bytes()[at]++
				broken = true
			}
			return check(s)
		}
		_, err := measure(&options{device: "soft0", peer: "soft1", time: time.Millisecond}, &op)
		assert.Error(t, err, "%s on %s", op.name, op.on)
	}
}
