// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTerminals checks that progress overwrites one line on a terminal and writes nothing elsewhere.
func TestTerminals(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer master.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer terminal.Close()
	show := statusLine(terminal)
	require.NotNil(t, show)
	show("64 bytes")
	show("")
	require.NoError(t, unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 4}))
	show("12µ456")
	want := "\r\x1b[K64 bytes\r\x1b[K\r\x1b[K12µ"
	output := make([]byte, len(want))
	_, err = io.ReadFull(master, output)
	require.NoError(t, err)
	assert.Equal(t, want, string(output))

	pipe, to, err := os.Pipe()
	require.NoError(t, err)
	defer pipe.Close()
	defer to.Close()
	assert.Nil(t, statusLine(to))
}
