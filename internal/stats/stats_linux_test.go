// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serve publishes text as the answer to each connection, which it then keeps open for a time.
func serve(t *testing.T, dir, name, text string, open time.Duration) {
	l, err := net.Listen("unix", filepath.Join(dir, name))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, text)
			time.Sleep(open)
			c.Close()
		}
	}()
}

// TestHostile: an invalid entry in the directory affects only its own answer, and delays the others by at most some
// seconds.
func TestHostile(t *testing.T) {
	dir, otherDir := t.TempDir(), t.TempDir()
	good, err := json.Marshal(Report{Format: Format, Instance: "me", Devices: []Device{{Name: "soft0",
		Queues: map[string]Queue{Send: {Posted: 7}}}}})
	require.NoError(t, err)
	serve(t, dir, "1-good.goverbs", string(good), 0)
	serve(t, dir, "other", string(good), 0) // another program's
	serve(t, otherDir, "target", string(good), 0)
	require.NoError(t, os.Symlink(filepath.Join(otherDir, "target"), filepath.Join(dir, "2-link.goverbs")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "3-file.goverbs"), good, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "4-dir.goverbs"), 0o700))
	serve(t, dir, "5-silent.goverbs", "", time.Hour)
	serve(t, dir, "6-large.goverbs", "["+strings.Repeat("1,", maxBytes), 0)
	bad := func(n int, change string) {
		serve(t, dir, fmt.Sprintf("%d-bad.goverbs", n), change, 0)
	}
	head := `{"goverbs_stats":1,"instance":"x","devices":[`
	for i, text := range []string{"", "hello", "[]", `{"goverbs_stats":2}`, `{"goverbs_stats":1}`,
		head + `{"device":""}]}`, head + `{"device":"a"},{"device":"a"}]}`, head + `{"device":"a\u001b[2J"}]}`,
		head + `{"device":"a","objects":{"q p":1}}]}`, head + `{"device":"a","objects":{"qp":-1}}]}`,
		head + `{"device":"a","objects":{"qp":1e99}}]}`, head + `{"device":"a","queues":{"x":{}}}]}`,
		head + `{"device":"` + strings.Repeat("a", maxNameLen+1) + `"}]}`,
		head + strings.TrimSuffix(strings.Repeat(`{},`, maxDevices+1), ",") + `]}`} {
		bad(10+i, text)
	}
	var many []string
	for i := range maxNames + 1 {
		many = append(many, fmt.Sprintf(`"c%d":1`, i))
	}
	bad(40, head+`{"device":"a","hw_counters":{`+strings.Join(many, ",")+`}}]}`)
	begun := time.Now()
	all, problems := Ask(dir)
	assert.Less(t, time.Since(begun), time.Minute)
	require.Len(t, all, 1)
	assert.EqualValues(t, os.Getpid(), all[0].PID)
	assert.EqualValues(t, 7, all[0].Devices[0].Queues[Send].Posted)
	assert.Len(t, problems, 5+14+1, "each error describes a problem: %v", problems)
	_, problems = Ask(filepath.Join(dir, "nowhere"))
	assert.Len(t, problems, 1)
}

// TestEndedProgram: a program that has ended is not reported as a problem, and the next publisher removes its socket.
func TestEndedProgram(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "1-gone.goverbs")})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	all, problems := Ask(dir)
	assert.Empty(t, all)
	assert.Empty(t, problems)
	require.NoError(t, os.Chmod(dir, 0o770))
	require.NoError(t, publish(dir))
	all, problems = Ask(dir)
	assert.Empty(t, problems)
	require.Len(t, all, 1)
	assert.EqualValues(t, os.Getpid(), all[0].PID)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1)
	info, err := names[0].Info()
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o660), info.Mode().Perm(), "users who may write to the directory may query")
	require.Error(t, publish(filepath.Join(dir, "nowhere")))
	require.ErrorContains(t, publish(func() string {
		long := filepath.Join(dir, strings.Repeat("d", 120))
		require.NoError(t, os.Mkdir(long, 0o700))
		return long
	}()), "about 100 bytes")
}

// TestHostileAnswersAreSmall queries many programs whose answers decode to much more memory than their size, and checks
// the total memory.
func TestHostileAnswersAreSmall(t *testing.T) {
	dir := t.TempDir()
	head := fmt.Sprintf(`{"goverbs_stats":%d,"instance":"x","devices":[`, Format)
	large := head + strings.Repeat(`{},`, (1<<20-len(head)-8)/3) + `{}]}`
	for i := range 32 {
		serve(t, dir, fmt.Sprintf("%d-large.goverbs", i), large, 0)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	all, problems := Ask(dir)
	runtime.ReadMemStats(&after)
	assert.Empty(t, all)
	assert.Len(t, problems, 32)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20), "the texts themselves are 64 MiB")
	// within the limit of bytes, but not of values
	_, err := parse([]byte(head + strings.Repeat(`{},`, (maxBytes-len(head)-8)/3) + `{}]}`))
	assert.ErrorContains(t, err, "values")
}

// TestAFewAtOnce: only a few programs are queried at a time, and for a limited time.
func TestAFewAtOnce(t *testing.T) {
	dir := t.TempDir()
	var now, most atomic.Int32
	for i := range 3 * atOnce {
		l, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf("%d-slow.goverbs", i)))
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(20 * time.Millisecond)
				now.Add(-1)
				c.Close()
			}
		}()
	}
	_, problems := Ask(dir)
	assert.Len(t, problems, 3*atOnce)
	assert.LessOrEqual(t, most.Load(), int32(atOnce))
}

// TestManyOfOthers: a user with many sockets does not prevent other users' programs from being queried.
func TestManyOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create sockets of other users")
	}
	dir := t.TempDir()
	for i := range maxSockets + 1 {
		name := filepath.Join(dir, fmt.Sprintf("0%d.goverbs", i))
		require.NoError(t, syscall.Mknod(name, syscall.S_IFSOCK|0o600, 0))
		require.NoError(t, os.Lchown(name, 12345, -1))
	}
	serve(t, dir, "1.goverbs", fmt.Sprintf(`{"goverbs_stats":%d,"instance":"x"}`, Format), 0)
	all, problems := Ask(dir)
	assert.Len(t, all, 1)
	assert.Len(t, problems, 1, "more sockets than are queried")
}
