// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of queries and answers: any user who can write to the directory can publish an answer.
const (
	mostSockets = 1024
	mostBytes   = 128 << 10
	mostValues  = 4096 // JSON values, which take more memory than their text
	mostDevices = 64
	mostNames   = 1024 // names of counters and kinds on all devices
	longestName = 64
	atOnce      = 8
	allTime     = 15 * time.Second // time limit of all answers together
)

// Answer is a program's report.
type Answer struct {
	PID uint32 // reported by the kernel; 0 if the program is in another PID namespace
	UID uint32
	*Report
}

// Ask queries all programs that publish in a directory, several at a time. It omits programs that have ended. problems
// contains an error for each program with an invalid answer.
func Ask(dir string) (all []Answer, problems []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{err}
	}
	var mu sync.Mutex
	var rest error // why some sockets were not queried
	var asked sync.WaitGroup
	n, tokens, until := 0, make(chan struct{}, atOnce), time.Now().Add(allTime)
	for _, name := range alternate(entries) {
		if n++; n > mostSockets {
			rest = fmt.Errorf("%q has more than %d sockets: the others were not queried", dir, mostSockets)
			break
		}
		if time.Now().After(until) {
			rest = fmt.Errorf("%q: programs took too long to answer: the others were not queried", dir)
			break
		}
		tokens <- struct{}{}
		asked.Go(func() {
			defer func() { <-tokens }()
			a, err := ask(filepath.Join(dir, name))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all = append(all, a)
			case !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT):
				problems = append(problems, err)
			}
		})
	}
	asked.Wait()
	if rest != nil {
		problems = append(problems, rest)
	}
	return all, problems
}

// alternate returns the names of sockets, alternating between users, so that a user with many sockets does not exhaust
// the limits before others are queried.
func alternate(entries []os.DirEntry) (all []string) {
	byUser, most := map[uint32][]string{}, 0
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), suffix) {
			continue
		}
		if info, err := entry.Info(); err == nil { // fails if the program has ended
			uid := info.Sys().(*syscall.Stat_t).Uid
			byUser[uid] = append(byUser[uid], entry.Name())
			most = max(most, len(byUser[uid]))
		}
	}
	users := slices.Sorted(maps.Keys(byUser))
	for i := range most {
		for _, uid := range users {
			if len(all) > mostSockets {
				return all
			}
			if i < len(byUser[uid]) {
				all = append(all, byUser[uid][i])
			}
		}
	}
	return all
}

// ask queries one socket. It does not follow symbolic links.
func ask(name string) (a Answer, err error) {
	fd, info, err := find(name)
	if err != nil {
		return a, err
	}
	defer unix.Close(fd)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%q: %w", name, err)
		}
	}()
	c, err := net.DialTimeout("unix", path(fd), answerTime)
	if err != nil {
		return a, err
	}
	defer c.Close()
	if a.PID, a.UID, err = other(c.(*net.UnixConn)); err != nil {
		return a, err
	}
	if a.UID != info.Uid {
		return a, fmt.Errorf("the socket belongs to user %d, and the program to user %d", info.Uid, a.UID)
	}
	if err := c.SetDeadline(time.Now().Add(2 * answerTime)); err != nil {
		return a, err
	}
	text := make([]byte, mostBytes+1)
	n, err := io.ReadFull(c, text)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return a, err
	}
	a.Report, err = parse(text[:n])
	return a, err
}

// other returns the process and user of a connection's peer.
func other(c *net.UnixConn) (pid, uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var who *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, 0, err
	}
	return uint32(who.Pid), who.Uid, nil
}

// parse parses an untrusted report.
func parse(text []byte) (*Report, error) {
	if len(text) > mostBytes {
		return nil, fmt.Errorf("the report has more than %d bytes", mostBytes)
	}
	if bytes.Count(text, []byte{','}) > mostValues {
		return nil, fmt.Errorf("the report has more than %d values", mostValues)
	}
	r := new(Report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("invalid report: %w", err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("the report has format %d, but this program supports %d: use the newer goverbs of the two",
			r.Format, Format)
	}
	if len(r.Devices) > mostDevices {
		return nil, fmt.Errorf("the report has more than %d devices", mostDevices)
	}
	if !short(r.Instance) {
		return nil, errors.New("the report has an invalid instance name")
	}
	known, names := map[string]bool{}, 0
	for _, d := range r.Devices {
		if !short(d.Name) || known[d.Name] {
			return nil, errors.New("the report has a duplicate or invalid device name")
		}
		known[d.Name] = true
		if names += len(d.Objects) + len(d.Hardware); names > mostNames {
			return nil, fmt.Errorf("the report has more than %d counters", mostNames)
		}
		for _, counts := range []map[string]uint64{d.Objects, d.Hardware} {
			for name := range counts {
				if !short(name) {
					return nil, errors.New("the report has an invalid counter name")
				}
			}
		}
		for kind := range d.Queues {
			if kind != Send && kind != Receive && kind != SharedReceive {
				return nil, errors.New("the report has an unknown kind of queue")
			}
		}
	}
	return r, nil
}

// short reports whether a name is valid: not empty, not too long, and printable ASCII.
func short(name string) bool {
	return name != "" && len(name) <= longestName &&
		!strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
