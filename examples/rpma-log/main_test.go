// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/examples/internal/remote"
)

// childFile is the environment variable that makes the test binary append to a log until it is killed.
const childFile = "RPMA_LOG_FILE"

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		if err := appendForever(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func command(file string) remote.Command {
	return remote.Command{File: file, Size: logSize, Room: maxRecord}
}

// record returns record i. Sizes differ from one record to the next.
func record(i int) string { return fmt.Sprintf("%d:%s", i, strings.Repeat("x", i*37%500)) }

// appendForever appends records and prints the number of each one after Append has returned.
func appendForever(file string) error {
	return command(file).Run(context.Background(), func(ctx context.Context, m *remote.Memory) error {
		l, err := Open(ctx, m)
		if err != nil {
			return err
		}
		next := 0
		if err := l.Read(ctx, func(i int, _ []byte) error { next = i + 1; return nil }); err != nil {
			return err
		}
		for ; ; next++ {
			if err := l.Append(ctx, []byte(record(next))); err != nil {
				return err
			}
			fmt.Println(next)
		}
	})
}

// read checks the records of a log and returns their number.
func read(t *testing.T, file string) (n int) {
	require.NoError(t, command(file).Run(t.Context(), func(ctx context.Context, m *remote.Memory) error {
		l, err := Open(ctx, m)
		if err != nil {
			return err
		}
		return l.Read(ctx, func(i int, b []byte) error {
			assert.Equal(t, record(i), string(b))
			n = i + 1
			return nil
		})
	}))
	return n
}

// TestKilled kills a process that appends records. The log must have all reported records, and another process can
// append to it.
func TestKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	reported := -1
	for round := range 4 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childFile+"="+file)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		lines := bufio.NewScanner(out)
		for more := 20 + 50*round; more > 0 && lines.Scan(); more-- {
			reported, err = strconv.Atoi(lines.Text())
			require.NoError(t, err)
		}
		require.NoError(t, child.Process.Kill())
		for lines.Scan() { // its output before it was killed
			reported, err = strconv.Atoi(lines.Text())
			require.NoError(t, err)
		}
		require.ErrorContains(t, child.Wait(), "killed")
		n := read(t, file)
		assert.GreaterOrEqual(t, n, reported+1, "a reported record is missing")
		assert.LessOrEqual(t, n, reported+2, "at most one unreported record")
	}
}

// TestNotALog checks that damaged logs and other data are detected.
func TestNotALog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	open := func() error {
		return command(file).Run(t.Context(), func(ctx context.Context, m *remote.Memory) error {
			l, err := Open(ctx, m)
			if err != nil {
				return err
			}
			if err := l.Append(ctx, []byte("text")); err != nil {
				return err
			}
			return l.Read(ctx, func(int, []byte) error { return nil })
		})
	}
	require.NoError(t, open())
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	for name, damage := range map[string]func(b []byte){
		"other data":                   func(b []byte) { copy(b, "something else") },
		"an end outside of the memory": func(b []byte) { copy(b[endAt:], "\xff\xff\xff\xff\xff\xff\xff\xff") },
		"a record that is too long":    func(b []byte) { b[firstAt+2] = 1 },
		"changed bytes":                func(b []byte) { b[firstAt+headSize]++ },
	} {
		bad := append([]byte(nil), good...)
		damage(bad)
		require.NoError(t, os.WriteFile(file, bad, 0o600))
		assert.Error(t, open(), name)
	}
	require.NoError(t, os.WriteFile(file, good, 0o600))
	require.NoError(t, open())
}

// TestFull checks that a full log returns an error.
func TestFull(t *testing.T) {
	c := command(filepath.Join(t.TempDir(), "log"))
	c.Size = 4096
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, c.Run(ctx, func(ctx context.Context, m *remote.Memory) error {
		l, err := Open(ctx, m)
		require.NoError(t, err)
		n := 0
		for ; ; n++ {
			if err = l.Append(ctx, make([]byte, 100)); err != nil {
				break
			}
		}
		assert.Equal(t, (4096-firstAt)/112, n)
		assert.ErrorContains(t, err, "no room")
		assert.Error(t, l.Append(ctx, make([]byte, maxRecord)))
		assert.Error(t, l.Append(ctx, nil), "the log fills the memory")
		return nil
	}))
}
