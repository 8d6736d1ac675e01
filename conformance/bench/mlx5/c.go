// SPDX-License-Identifier: BSD-2-Clause

package main

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#include <infiniband/verbs.h>
#include <stdint.h>

static int loop_post(uintptr_t qp, uintptr_t wr, uintptr_t bad, int n)
{
	for (int i = 0; i < n; i++) {
		int err = ibv_post_send((struct ibv_qp *)qp, (struct ibv_send_wr *)wr, (struct ibv_send_wr **)bad);

		if (err)
			return err;
	}
	return 0;
}

static int loop_poll(uintptr_t cq, int entries, uintptr_t wc, int n)
{
	int found = 0;

	for (int i = 0; i < n; i++)
		found += ibv_poll_cq((struct ibv_cq *)cq, entries, (struct ibv_wc *)wc);
	return found;
}

#cgo noescape cgo_post
#cgo nocallback cgo_post
static inline int cgo_post(uintptr_t qp, uintptr_t wr, uintptr_t bad)
{
	return ibv_post_send((struct ibv_qp *)qp, (struct ibv_send_wr *)wr, (struct ibv_send_wr **)bad);
}

#cgo noescape cgo_poll
#cgo nocallback cgo_poll
static inline int cgo_poll(uintptr_t cq, int entries, uintptr_t wc)
{
	return ibv_poll_cq((struct ibv_cq *)cq, entries, (struct ibv_wc *)wc);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"syscall"
)

var errFailed = errors.New("a call failed that cannot")

// loopPost and loopPoll are the loops of a program of C.
func loopPost(qp, wr, bad uintptr, n int) error {
	if err := C.loop_post(C.uintptr_t(qp), C.uintptr_t(wr), C.uintptr_t(bad), C.int(n)); err != 0 {
		return fmt.Errorf("%w: %w", errFailed, syscall.Errno(err))
	}
	return nil
}

func loopPoll(cq uintptr, entries int, wc uintptr, n int) int {
	return int(C.loop_poll(C.uintptr_t(cq), C.int(entries), C.uintptr_t(wc), C.int(n)))
}

// cgoPost and cgoPoll cross into C once for each call.
func cgoPost(qp, wr, bad uintptr) int {
	return int(C.cgo_post(C.uintptr_t(qp), C.uintptr_t(wr), C.uintptr_t(bad)))
}

func cgoPoll(cq uintptr, entries int, wc uintptr) int {
	return int(C.cgo_poll(C.uintptr_t(cq), C.int(entries), C.uintptr_t(wc)))
}
