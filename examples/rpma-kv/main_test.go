// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/examples/internal/remote"
)

// childFile is the environment variable that makes the test binary put values into a store until it is killed.
// childRound distinguishes its values from those of other rounds.
const childFile, childRound = "RPMA_KV_FILE", "RPMA_KV_ROUND"

const testSize = 64 << 20 // memory of old values is not reused

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		if err := putForever(file, os.Getenv(childRound)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func with(file string, use func(ctx context.Context, s *Store) error) error {
	c := remote.Command{File: file, Size: testSize, Room: room}
	return c.Run(context.Background(), func(ctx context.Context, m *remote.Memory) error {
		s, err := Open(ctx, m)
		if err != nil {
			return err
		}
		return use(ctx, s)
	})
}

const keys = 7

// value returns value n of a round. Sizes differ from one value to the next.
func value(round string, n int) string {
	return fmt.Sprintf("%s.%d:%s", round, n, strings.Repeat("y", n*53%700))
}

// putForever puts values and prints the number of each one after Put has returned.
func putForever(file, round string) error {
	return with(file, func(ctx context.Context, s *Store) error {
		for n := 0; ; n++ {
			if err := s.Put(ctx, fmt.Sprint("key", n%keys), []byte(value(round, n))); err != nil {
				return err
			}
			fmt.Println(n)
		}
	})
}

// TestKilled kills a process that puts values. Every key must have the last reported value or the one that was being
// put, and another process can use the store.
func TestKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	for round := range 4 {
		name := fmt.Sprint("round", round)
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childFile+"="+file, childRound+"="+name)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		lines := bufio.NewScanner(out)
		last := -1
		for more := 30 + 40*round; more > 0 && lines.Scan(); more-- {
			last++
			require.Equal(t, fmt.Sprint(last), lines.Text())
		}
		require.NoError(t, child.Process.Kill())
		for lines.Scan() {
			last++
			require.Equal(t, fmt.Sprint(last), lines.Text())
		}
		require.ErrorContains(t, child.Wait(), "killed")
		require.NoError(t, with(file, func(ctx context.Context, s *Store) error {
			assert.Equal(t, keys, s.Keys())
			for n := last - keys + 1; n <= last; n++ {
				got, ok, err := s.Get(ctx, fmt.Sprint("key", n%keys))
				require.NoError(t, err)
				require.True(t, ok)
				if string(got) != value(name, n+keys) || n+keys != last+1 { // the value that was being put
					assert.Equal(t, value(name, n), string(got))
				}
			}
			return nil
		}))
	}
}

// TestStore tests values of any size, missing keys, many keys, a full store, and damaged records.
func TestStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	require.NoError(t, with(file, func(ctx context.Context, s *Store) error {
		_, ok, err := s.Get(ctx, "a")
		assert.False(t, ok)
		require.NoError(t, err)
		for _, size := range []int{0, 1, 7, 8, 9, room - headSize - 1} {
			require.NoError(t, s.Put(ctx, "a", make([]byte, size)))
			got, ok, err := s.Get(ctx, "a")
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Len(t, got, size)
		}
		assert.ErrorContains(t, s.Put(ctx, "a", make([]byte, room-headSize)), "no room")
		for i := range slots - 1 {
			require.NoError(t, s.Put(ctx, fmt.Sprint("many", i), []byte{byte(i)}))
		}
		assert.ErrorContains(t, s.Put(ctx, "one more", nil), "no room")
		return s.Put(ctx, "many5", []byte("new"))
	}))
	require.NoError(t, with(file, func(ctx context.Context, s *Store) error {
		assert.Equal(t, slots, s.Keys())
		got, _, err := s.Get(ctx, "many5")
		assert.Equal(t, "new", string(got))
		return err
	}))
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{0xff}, recordsAt+headSize+9)
	require.NoError(t, err)
	nothing := func(context.Context, *Store) error { return nil }
	require.NoError(t, with(file, nothing), "damage of an old value")
	for _, damage := range []struct {
		at    int64
		bytes string
	}{{tableAt + 16, "\x01"}, {tableAt, "\xff\xff\xff\xff\xff\xff\xff\xff"}, {0, "other"}} {
		_, err = f.WriteAt([]byte(damage.bytes), damage.at)
		require.NoError(t, err)
		assert.Error(t, with(file, nothing), damage.at)
	}
}
