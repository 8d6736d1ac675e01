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

// threads are those of this process.
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

// queueing reads how long the threads of this process were ready to run and had no CPU.
type queueing struct {
	files map[int]int // descriptors of their schedstat
	text  [128]byte
}

// find looks for threads that are new.
func (q *queueing) find() {
	if q.files == nil {
		q.files = map[int]int{}
	}
	for tid := range threads() {
		if _, ok := q.files[tid]; !ok {
			if fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/schedstat", tid), unix.O_RDONLY|unix.O_CLOEXEC,
				0); err == nil {
				q.files[tid] = fd
			}
		}
	}
}

// total is the sum over the threads that find has found: the second number of each file, in nanoseconds.
func (q *queueing) total() (sum time.Duration) {
	for _, fd := range q.files {
		n, _ := unix.Pread(fd, q.text[:], 0)
		field, ns := 0, time.Duration(0)
		for _, c := range q.text[:max(n, 0)] {
			switch {
			case c == ' ':
				field++
			case field == 1:
				ns = 10*ns + time.Duration(c-'0')
			}
		}
		sum += ns
	}
	return sum
}
