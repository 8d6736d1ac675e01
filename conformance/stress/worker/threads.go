// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"iter"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// threads iterates over the threads of this process.
func threads() iter.Seq[int] {
	return func(yield func(int) bool) {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, e := range entries {
			if tid, err := strconv.Atoi(e.Name()); err == nil && !yield(tid) {
				return
			}
		}
	}
}

// queueing measures how long threads of this process were runnable without a CPU.
type queueing struct {
	threads map[int]*waiting // by thread ID
	text    [128]byte
}

type waiting struct {
	file   int // descriptor of its schedstat file
	before time.Duration
}

// find looks for new threads.
func (q *queueing) find() {
	if q.threads == nil {
		q.threads = map[int]*waiting{}
	}
	for tid := range threads() {
		if _, ok := q.threads[tid]; !ok {
			if fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/schedstat", tid), unix.O_RDONLY|unix.O_CLOEXEC,
				0); err == nil {
				q.threads[tid] = &waiting{file: fd}
			}
		}
	}
}

// begin starts a measurement.
func (q *queueing) begin() {
	for _, w := range q.threads {
		w.before = q.waited(w.file)
	}
}

// since returns how long the known threads have waited since begin: the sum, and the maximum. Several may wait
// concurrently.
func (q *queueing) since() (sum, most time.Duration) {
	for _, w := range q.threads {
		t := q.waited(w.file) - w.before
		sum, most = sum+t, max(most, t)
	}
	return sum, most
}

// waited reads the second number of the file, in nanoseconds.
func (q *queueing) waited(file int) (t time.Duration) {
	n, _ := unix.Pread(file, q.text[:], 0)
	field := 0
	for _, c := range q.text[:max(n, 0)] {
		switch {
		case c == ' ':
			field++
		case field == 1:
			t = 10*t + time.Duration(c-'0')
		}
	}
	return t
}
