//go:build linux && (amd64 || arm64)

package main

import (
	"iter"
	"os"
	"strconv"
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
