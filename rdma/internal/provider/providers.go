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

// Provider describes a provider: the verbs that may be called without notifying Go's scheduler.
//
// Pure verbs run in user space, without system calls, waiting, or calls of other libraries. Exceptions on error paths
// are a printed line and a briefly held mutex.
//
// Brief verbs enter the kernel, which works but never sleeps for the device or a peer. Such a call is like computation,
// so the goroutine must keep its P: a monitor thread that retakes it costs more than the call. The world cannot stop
// during the call.
type Provider struct {
	Name   string // as in the name of its shared object: "mlx5" of libmlx5.so.1 and of libmlx5-rdmav34.so
	Pure   Verbs
	Brief  Verbs
	Reason string // the sources that show it, and the result of running it
}

// Providers returns the built-in list. Other providers, and verbs that are neither Pure nor Brief, are called the
// Blocking way, which is always correct.
func Providers() []Provider { return slices.Clone(providers) }

// fastest returns the fastest way to call a verb of a provider. Rows of extra take precedence.
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

// Software is the name of every backend in Go.
const Software = "software"

var providerNames sync.Map // by function, after the first lookup

// providerOf returns the name of the provider that a function belongs to, or "". It reads /proc/self/maps once for each
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

// fileAt returns the file that is mapped at an address, from a process's maps: "7f10-7f20 r-xp 0000 08:01 42
// /usr/lib/libmlx5.so.1.25".
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

// providerName returns the provider's name from that of its shared object: "mlx5" of libmlx5.so.1.25.65.0, "rxe" of
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
