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

static inline int post_wrs(uintptr_t qp, int batch)
{
	struct ibv_qp_ex *x = (struct ibv_qp_ex *)qp;

	ibv_wr_start(x);
	for (int i = 0; i < batch; i++) {
		x->wr_id = i;
		x->wr_flags = i == batch - 1 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_rdma_write(x, 0x5678, 0x7e0000000000 + 64 * i);
		ibv_wr_set_sge(x, 0x1234, 0x7f0000000000 + 64 * i, 64);
	}
	return ibv_wr_complete(x);
}

static int loop_wr(uintptr_t qp, int batch, int n)
{
	for (int i = 0; i < n; i++) {
		int err = post_wrs(qp, batch);

		if (err)
			return err;
	}
	return 0;
}

#cgo noescape post_wrs
#cgo nocallback post_wrs
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

var errFailed = errors.New("unexpected failure of a call")

// loopPost and loopPoll are the loops of a C program.
func loopPost(qp, wr, bad uintptr, n int) error {
	if err := C.loop_post(C.uintptr_t(qp), C.uintptr_t(wr), C.uintptr_t(bad), C.int(n)); err != 0 {
		return fmt.Errorf("%w: %w", errFailed, syscall.Errno(err))
	}
	return nil
}

func loopPoll(cq uintptr, entries int, wc uintptr, n int) int {
	return int(C.loop_poll(C.uintptr_t(cq), C.int(entries), C.uintptr_t(wc), C.int(n)))
}

func loopWR(qp uintptr, batch, n int) error {
	if err := C.loop_wr(C.uintptr_t(qp), C.int(batch), C.int(n)); err != 0 {
		return fmt.Errorf("%w: %w", errFailed, syscall.Errno(err))
	}
	return nil
}

// cgoWR, cgoPost and cgoPoll call C with cgo.
func cgoPost(qp, wr, bad uintptr) int {
	return int(C.cgo_post(C.uintptr_t(qp), C.uintptr_t(wr), C.uintptr_t(bad)))
}

func cgoWR(qp uintptr, batch int) int { return int(C.post_wrs(C.uintptr_t(qp), C.int(batch))) }

func cgoPoll(cq uintptr, entries int, wc uintptr) int {
	return int(C.cgo_poll(C.uintptr_t(cq), C.int(entries), C.uintptr_t(wc)))
}
