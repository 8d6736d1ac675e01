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

// Provider describes a provider: the verbs that may be called without telling Go's scheduler.
//
// Pure verbs are executed in user space alone, without system calls, waiting, or calls into other libraries. On error
// paths, a printed line and a mutex that is held briefly do not count.
//
// Brief verbs enter the kernel, which works there and never sleeps for the device or for a peer. A goroutine in such a
// call computes, so its P must not be given away: a monitor thread that takes it costs more than the call. The world
// cannot stop before the call is over.
type Provider struct {
	Name   string // as in the name of its shared object: "mlx5" of libmlx5.so.1 and of libmlx5-rdmav34.so
	Pure   Verbs
	Brief  Verbs  // not on private stacks: Exclusive handles call them the System way
	Reason string // the sources that show it
}

// Providers returns the built-in list. A provider that is not in it, or a verb that is neither in its Pure nor in its
// Brief, is called the Blocking way, which is right for all.
func Providers() []Provider { return slices.Clone(providers) }

const (
	all    = PostSend | PostRecv | Poll | ReqNotify
	within = "rdma-core 65.0, "

	// Of providers whose usual calls conformance/provider makes under seccomp: testdata/posting.csv there.
	shown = "; seen under seccomp"
)

// providers lists all providers of rdma-core. If one enters the kernel to post, all its verbs are called the Blocking
// way, unless its sources show which of them take only spinlocks, and those of the kernel that posts do not sleep.
var providers = []Provider{
	{"mlx5", all, 0, within + "qp.c, srq.c, cq.c: rings, doorbells and spinlocks; polling a signature error takes " +
		"the mutex of the table of mkeys; an unexpected failed completion is printed only " +
		"to the file of MLX5_DEBUG_FILE, and sleeps for ever only under MLX5_FREEZE_ON_ERROR_CQE; " +
		"both variables are read when the device is opened" + shown},
	{"mlx4", all, 0, within + "qp.c, srq.c, cq.c: rings, doorbells and spinlocks; prints a local operation error" +
		shown},
	{"efa", all, 0, within + "verbs.c: rings, doorbells and spinlocks; prints what it refuses, to the file of " +
		"VERBS_LOG_FILE alone" + shown},
	{"erdma", all, 0, within + "erdma_verbs.c: rings, doorbells and spinlocks" + shown},
	{"ionic", all, 0, within + "ionic_verbs.c: rings, doorbells and spinlocks"},
	{"qedr", all, 0, within + "qelr_verbs.c: rings, doorbells and spinlocks"},
	{"mthca", all, 0, within + "qp.c, srq.c, cq.c: rings, doorbells and spinlocks; prints a local operation error"},
	{"ocrdma", all, 0, within + "ocrdma_verbs.c: rings, doorbells and spinlocks"},
	{"vmw_pvrdma", all, 0, within + "qp.c, cq.c: rings, doorbells and spinlocks; prints an invalid opcode"},
	{"mana", PostSend | PostRecv | ReqNotify, 0,
		within + "cq.c, handle_error_cqe: a poll that finds a failed completion modifies " +
			"the queue pair, in the kernel, under its locks; the rest" + shown},

	{"bnxt_re", 0, 0, within + "verbs.c, bnxt_re_do_pacing: doorbells under congestion tell the driver by ioctl, and " +
		"posting modifies a queue pair that has to be forced back to RTS; the usual calls ask nothing" +
		shown},
	{"cxgb4", 0, 0, within + "qp.c, ring_kernel_db: posting rings doorbells by ibv_cmd_modify_qp while the " +
		"hardware's overflow"},
	{"hns", 0, 0, within + "hns_roce_u_hw_v2.c: posting to a queue pair in the state of errors, and polling a " +
		"failed completion, modify the queue pair in the kernel; the usual calls ask nothing" + shown},
	{"irdma", 0, 0, within + "uverbs.c, irdma_issue_flush: posting to a queue pair in the state of errors modifies " +
		"it in the kernel; polling after a resize deregisters the old queue; the usual calls ask nothing" + shown},
	{"rxe", PostRecv | Poll, PostSend,
		within + "rxe.c, rxe_poll_cq, rxe_post_recv, rxe_post_srq_recv: rings and spinlocks; " +
			"post_send_db: posting a send writes to the device's file, and requests for events are commands as well; " +
			"Linux 6.1 to 7.0, rxe_verbs.c, rxe_post_send: the kernel hands packets to the network, as many as fit " +
			"between two acknowledgements, or wakes a worker that does, under spinlocks"},
	{"siw", 0, 0, within + "siw.c, siw_db: posting writes to the device's file"},
	{"hfi1verbs", 0, 0, within + "hfiverbs.c, verbs.c: posting and requests for events are commands to the kernel"},
	{"ipathverbs", 0, 0, within + "ipathverbs.c, verbs.c: posting and requests for events are commands to the kernel"},
}

// fastest is the fastest way to call a verb of a provider. Rows of extra take precedence.
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
	case p.Pure&verb == verb:
		return runtime.Exclusive
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

// File returns the path of the file that a function comes from, or "" where it comes from none.
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
