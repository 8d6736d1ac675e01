// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"golang.org/x/sys/unix"
)

// verbs of the newest library
var bufferControls = []control{
	{verb: "ibv_reg_mr_ex", what: works, call: regEx(func(*ibv.MRInitAttr) {})},
	{verb: "ibv_reg_mr_ex", what: "separate I/O virtual address, which is allowed",
		call: regEx(func(a *ibv.MRInitAttr) {
			a.CompMask, a.IOVA = a.CompMask|ibv.REG_MR_MASK_IOVA, uint64(a.Addr)+1<<40
		})},
	{verb: "ibv_reg_mr_ex", what: "neither address nor file", call: regEx(func(a *ibv.MRInitAttr) { a.CompMask = 0 })},
	{verb: "ibv_reg_mr_ex", what: "address and file", call: regEx(func(a *ibv.MRInitAttr) {
		a.CompMask, a.FD = a.CompMask|ibv.REG_MR_MASK_FD|ibv.REG_MR_MASK_FD_OFFSET|ibv.REG_MR_MASK_IOVA, 0
	})},
	{verb: "ibv_reg_mr_ex", what: "unknown bit in comp_mask",
		call: regEx(func(a *ibv.MRInitAttr) { a.CompMask |= 1 << 20 })},
	{verb: "ibv_reg_mr_ex", what: "remote write without local write",
		call: regEx(func(a *ibv.MRInitAttr) { a.Access = ibv.ACCESS_REMOTE_WRITE })},
	{verb: "ibv_alloc_buf", what: works, call: buffered(func(*testbed.Testbed, *ibv.Buf, uintptr) error { return nil })},
	{verb: "ibv_alloc_buf", what: "no bytes", call: func(r *testbed.Testbed) error { return allocBuf(r, 0) }},
	{verb: "ibv_alloc_buf", what: "more than there is", call: func(r *testbed.Testbed) error { return allocBuf(r, 1<<50) }},
	{verb: "ibv_free_buf", what: works, call: buffered(func(*testbed.Testbed, *ibv.Buf, uintptr) error { return nil })},
	{verb: "ibv_free_buf", what: "any", why: "it has no result"},
	{verb: "ibv_reg_buf_mr", what: works, call: buffered(func(r *testbed.Testbed, buf *ibv.Buf, at uintptr) error {
		return created(r, verbs.DeregMR)(verbs.RegBufMR(r.PD, buf, at, bufferLen, local))
	})},
	{verb: "ibv_reg_buf_mr", what: "beyond the end of the buffer",
		call: buffered(func(r *testbed.Testbed, buf *ibv.Buf, at uintptr) error {
			return created(r, verbs.DeregMR)(verbs.RegBufMR(r.PD, buf, at+8, 1<<20, local))
		})},
	{verb: "ibv_reg_buf_mr", what: "another protection domain",
		call: buffered(func(r *testbed.Testbed, buf *ibv.Buf, at uintptr) error {
			other, err := verbs.AllocPD(r.Context)
			r.Check(err)
			r.Defer(func() { r.Check(verbs.DeallocPD(other)) })
			return created(r, verbs.DeregMR)(verbs.RegBufMR(other, buf, at, bufferLen, local))
		})},
	{verb: "ibv_export_buf_dmabuf_fd", what: "buffer that is not a DMA-BUF",
		call: buffered(func(r *testbed.Testbed, buf *ibv.Buf, _ uintptr) error {
			fd, err := verbs.ExportBufDMABufFD(buf)
			if err == nil {
				r.Check(unix.Close(fd))
			}
			return err
		})},
}

func regEx(change func(*ibv.MRInitAttr)) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		attr := &ibv.MRInitAttr{Length: bufferLen, Access: local, CompMask: ibv.REG_MR_MASK_ADDR,
			Addr: address(&r.Memory(bufferLen)[0])}
		change(attr)
		return created(r, verbs.DeregMR)(verbs.RegMREx(r.PD, attr))
	}
}

func allocBuf(r *testbed.Testbed, size uint64) error {
	buf := &testbed.Records[ibv.Ptr[ibv.Buf]](r, 1)[0]
	_, err := verbs.AllocBuf(r.PD, size, buf)
	if err == nil {
		r.Check(verbs.FreeBuf(buf.Deref()))
	}
	return err
}

// buffered calls f with a buffer allocated by the library.
func buffered(f func(r *testbed.Testbed, buf *ibv.Buf, at uintptr) error) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		buf := &testbed.Records[ibv.Ptr[ibv.Buf]](r, 1)[0]
		at, err := verbs.AllocBuf(r.PD, 4096, buf)
		if err != nil {
			return err
		}
		r.Defer(func() { r.Check(verbs.FreeBuf(buf.Deref())) })
		return f(r, buf.Deref(), at)
	}
}
