// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goverbs/goverbs/runtime"
)

// Verbs is a set of verbs of the data path.
type Verbs uint8

// Values of Verbs.
const (
	PostSend  Verbs = 1 << iota // ibv_post_send, and ibv_wr_start to ibv_wr_complete
	PostRecv                    // ibv_post_recv and ibv_post_srq_recv
	Poll                        // ibv_poll_cq, and ibv_start_poll to ibv_end_poll
	ReqNotify                   // ibv_req_notify_cq
)

// Provider lists the verbs of a provider that may be called without notifying Go's scheduler.
//
// Pure verbs run in user space, without system calls, waits, or calls of other libraries. Error paths may print a line
// or hold a mutex briefly.
//
// Brief verbs enter the kernel, which works but never sleeps for the device or a peer. Such a call is like computation:
// the goroutine should keep its P, because a monitor thread that retakes it costs more than the call. The garbage
// collector cannot stop the world during the call.
type Provider struct {
	Name   string // as in the shared object's name: "mlx5" for libmlx5.so.1 and libmlx5-rdmav34.so
	Pure   Verbs
	Brief  Verbs
	Reason string // source code that proves it, and the result of running it
}

// Providers returns the built-in list. Verbs that are neither Pure nor Brief, and all verbs of other providers, are
// called the Blocking way, which is always correct.
func Providers() []Provider { return slices.Clone(providers) }

// fastest returns the fastest allowed way to call a provider's verb. Rows in extra take precedence.
func fastest(name string, verb Verbs, extra []Provider) runtime.Way {
	for _, rows := range [...][]Provider{extra, providers} {
		if i := slices.IndexFunc(rows, func(p Provider) bool { return p.Name == name }); i >= 0 {
			return rows[i].fastest(verb)
		}
	}
	return runtime.Blocking
}

func (p Provider) fastest(verb Verbs) runtime.Way {
	switch {
	case (p.Pure|p.Brief)&verb == verb:
		return runtime.System
	}
	return runtime.Blocking
}

// Software is the provider name of every backend in Go.
const Software = "software"

var providerNames sync.Map // cache: function → provider name

// providerOf returns the name of the provider that contains a function, or "". It reads /proc/self/maps once per
// function.
func providerOf(fn uintptr) string {
	if runtime.BackendOf(fn) != nil {
		return Software
	}
	if name, ok := providerNames.Load(fn); ok {
		return name.(string)
	}
	file, err := File(fn)
	if err != nil {
		return ""
	}
	name := providerName(file)
	providerNames.Store(fn, name)
	return name
}

// File returns the path of the file that contains a function, or "".
func File(fn uintptr) (string, error) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return "", err
	}
	defer maps.Close()
	return fileAt(maps, fn), nil
}

// fileAt returns the file mapped at an address. maps is the process's maps file, with lines like "7f10-7f20 r-xp 0000
// 08:01 42 /usr/lib/libmlx5.so.1.25".
func fileAt(maps io.Reader, address uintptr) string {
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		place, rest, _ := strings.Cut(lines.Text(), " ")
		from, to, _ := strings.Cut(place, "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil || uint64(address) < start || uint64(address) >= end {
			continue
		}
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return strings.TrimSuffix(rest[i:], " (deleted)")
		}
		return ""
	}
	return ""
}

// providerName returns the provider's name for a shared object: "mlx5" for libmlx5.so.1.25.65.0, "rxe" for
// librxe-rdmav34.so.
func providerName(path string) string {
	name, ok := strings.CutPrefix(filepath.Base(path), "lib")
	if !ok {
		return ""
	}
	name, _, ok = strings.Cut(name, ".so")
	if !ok {
		return ""
	}
	name, _, _ = strings.Cut(name, "-rdmav")
	return name
}
