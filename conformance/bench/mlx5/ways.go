// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/goverbs/goverbs/conformance/provider"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

const (
	depth = 1024 // requests per sample
	bytes = 64   // per request
	small = 16   // per inline request
)

// implementation is one way to post and poll, with its own device, queues and lists.
type implementation struct {
	name  string
	post  func(b *rdma.SendBatch, n int) error // posts n times
	poll  func(wcs []ibv.WC, n int) (int, error)
	lists map[string]*rdma.SendBatch

	wr       func(p *rdma.WRProgram, batch, n int) error // posts a program, or its content, n times
	programs map[int]*rdma.WRProgram

	qp   *rdma.QP
	cq   *rdma.CQ
	wcs  []ibv.WC
	ring struct { // completion ring, which this command writes
		first unsafe.Pointer
		size  uintptr
		mask  uint32
		next  uint32
	}
	posted uint32 // blocks of the send queue that were posted
}

func implementations() (all []*implementation, err error) {
	for _, variant := range []struct {
		name string
		make func(*implementation) error
		o    rdma.QueueOptions
	}{
		{"c", (*implementation).c, rdma.QueueOptions{Unchecked: true}},
		{"go-default", (*implementation).bareQueues, rdma.QueueOptions{Unchecked: true}},
		{"go-default-checked", (*implementation).objects, rdma.QueueOptions{}},
		{"cgo", (*implementation).cgo, rdma.QueueOptions{Unchecked: true}},
		{"purego", (*implementation).purego, rdma.QueueOptions{Unchecked: true}},
		{"go-native", (*implementation).bareQueues, rdma.QueueOptions{Unchecked: true}},
		{"go-native-checked", (*implementation).objects, rdma.QueueOptions{}},
	} {
		m := &implementation{name: variant.name, lists: map[string]*rdma.SendBatch{},
			programs: map[int]*rdma.WRProgram{}, wcs: make([]ibv.WC, 16)}
		if err := m.open(variant.o, strings.HasPrefix(variant.name, "go-native")); err != nil {
			return nil, fmt.Errorf("%s: %w", variant.name, err)
		}
		if err := variant.make(m); err != nil {
			return nil, fmt.Errorf("%s: %w", variant.name, err)
		}
		all = append(all, m)
	}
	return all, nil
}

func (m *implementation) open(o rdma.QueueOptions, native bool) error {
	d, err := rdma.Open(provider.Device)
	if err != nil {
		return err
	}
	if native {
		path, err := mlx5.NewPath(d)
		if err != nil {
			return err
		}
		d.UsePath(path)
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	if m.cq, err = d.CreateCQ(2*depth, nil, 0, o); err != nil {
		return err
	}
	m.qp, err = d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: m.cq.Ptr(), RecvCQ: m.cq.Ptr(), PD: pd.Ptr(),
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_RDMA_WRITE,
		Cap:          ibv.QPCap{MaxSendWR: depth, MaxSendSGE: 1, MaxInlineData: small}}, o)
	if err != nil {
		return err
	}
	local, err := m.qp.Endpoint()
	if err != nil {
		return err
	}
	if err := m.qp.Connect(local); err != nil {
		return err
	}
	out := new(mlx5dv.CQ)
	obj := &mlx5dv.Obj{CQ: mlx5dv.ObjCQ{In: ibv.PtrTo(m.cq.C()), Out: ibv.PtrTo(out)}}
	if err := libmlx5.InitObj(obj, mlx5dv.OBJ_CQ); err != nil {
		return err
	}
	m.ring.first, m.ring.size, m.ring.mask = *(*unsafe.Pointer)(unsafe.Pointer(&out.Buf)), uintptr(out.CQESize),
		out.CQECnt-1
	return nil
}

// list is a list of writes, the last of which is signaled.
func (m *implementation) list(inline bool, batch int) (*rdma.SendBatch, error) {
	key := fmt.Sprint(inline, batch)
	if b := m.lists[key]; b != nil {
		return b, nil
	}
	b, err := rdma.NewSendBatch(batch, 1, batch*small)
	if err != nil {
		return nil, err
	}
	for i := range batch {
		r := b.Write(uint64(i), remote+uint64(i*bytes), remoteKey)
		if inline {
			r = r.Inline(make([]byte, small))
		} else {
			r = r.SGE(local+uint64(i*bytes), bytes, localKey)
		}
		if i == batch-1 {
			r.Signaled()
		}
	}
	b.WR(batch - 1).Next = 0 // for implementations that do not post a batch
	m.lists[key] = b
	return b, b.Err()
}

// sample runs a case and returns the total duration and the number of calls.
func (m *implementation) sample(name string, batch int) (elapsed time.Duration, calls int, err error) {
	switch name {
	case "post", "post-inline", "wr":
		b, err := m.list(name == "post-inline", batch)
		if err != nil {
			return 0, 0, err
		}
		calls = depth / batch
		elapsed, err = timed(func() error {
			if name == "wr" {
				return m.run(batch, calls)
			}
			return m.post(b, calls)
		})
		if err != nil {
			return 0, 0, err
		}
		for range calls {
			m.posted += uint32(batch)
			m.complete(m.posted - 1)
		}
		return elapsed, calls, m.found(m.poll(m.wcs, (calls+15)/16))(calls)
	}
	if batch == 0 {
		calls = depth
		elapsed, err = timed(func() error { return m.found(m.poll(m.wcs[:1], calls))(0) })
		return elapsed, calls, err
	}
	b, err := m.list(false, 1)
	if err != nil {
		return 0, 0, err
	}
	if err := m.post(b, depth); err != nil {
		return 0, 0, err
	}
	for range depth {
		m.complete(m.posted)
		m.posted++
	}
	calls = depth / batch
	elapsed, err = timed(func() error { return m.found(m.poll(m.wcs[:batch], calls))(depth) })
	return elapsed, calls, err
}

func (m *implementation) found(n int, err error) func(want int) error {
	return func(want int) error {
		if err == nil && n != want {
			return fmt.Errorf("got %d completions, want %d", n, want)
		}
		return err
	}
}

// complete writes the completion of the request in a block.
func (m *implementation) complete(at uint32) {
	r := &m.ring
	const size = unsafe.Sizeof(mlx5dv.MLX5CQE64{})
	e := (*mlx5dv.MLX5CQE64)(unsafe.Add(r.first, uintptr(r.next&r.mask)*r.size+r.size-size))
	owner := uint8(0)
	if r.next&(r.mask+1) != 0 {
		owner = mlx5dv.MLX5_CQE_OWNER_MASK
	}
	*e = mlx5dv.MLX5CQE64{SOPDropQPN: ibv.ToBE32(mlx5dv.MLX5_OPCODE_RDMA_WRITE<<24 | m.qp.Num()),
		WQECounter: ibv.ToBE16(uint16(at)), OpOwn: mlx5dv.MLX5_CQE_REQ<<4 | owner}
	r.next++
}

// addresses returns the arguments of C functions.
func (m *implementation) addresses(b *rdma.SendBatch) (qp, wr uintptr) {
	return uintptr(unsafe.Pointer(m.qp.C())), uintptr(unsafe.Pointer(b.WR(0)))
}

func (m *implementation) c() error {
	m.wrC()
	bad := new(uintptr)
	m.post = func(b *rdma.SendBatch, n int) error {
		qp, wr := m.addresses(b)
		return loopPost(qp, wr, uintptr(unsafe.Pointer(bad)), n)
	}
	m.poll = func(wcs []ibv.WC, n int) (int, error) {
		return loopPoll(uintptr(unsafe.Pointer(m.cq.C())), len(wcs), uintptr(unsafe.Pointer(&wcs[0])), n), nil
	}
	return nil
}

func (m *implementation) cgo() error {
	m.wrCgo()
	bad := new(uintptr)
	m.post = func(b *rdma.SendBatch, n int) error {
		qp, wr := m.addresses(b)
		for range n {
			if cgoPost(qp, wr, uintptr(unsafe.Pointer(bad))) != 0 {
				return errFailed
			}
		}
		return nil
	}
	m.poll = func(wcs []ibv.WC, n int) (all int, err error) {
		cq := uintptr(unsafe.Pointer(m.cq.C()))
		for range n {
			all += cgoPoll(cq, len(wcs), uintptr(unsafe.Pointer(&wcs[0])))
		}
		return all, nil
	}
	return nil
}

func (m *implementation) purego() error {
	m.wrPurego()
	bad := new(uintptr)
	ops := &m.qp.C().Context.Deref().Ops
	m.post = func(b *rdma.SendBatch, n int) error {
		qp, wr := m.addresses(b)
		for range n {
			if r, _, _ := purego.SyscallN(uintptr(ops.PostSend), qp, wr, uintptr(unsafe.Pointer(bad))); r != 0 {
				return errFailed
			}
		}
		return nil
	}
	m.poll = func(wcs []ibv.WC, n int) (all int, err error) {
		cq := uintptr(unsafe.Pointer(m.cq.C()))
		for range n {
			r, _, _ := purego.SyscallN(uintptr(ops.PollCQ), cq, uintptr(len(wcs)), uintptr(unsafe.Pointer(&wcs[0])))
			all += int(int32(r))
		}
		return all, nil
	}
	return nil
}

// bareQueues creates queues without objects. For a native queue pair, they are the queue pair's own, unchecked.
func (m *implementation) bareQueues() error {
	if m.name != "go-default" {
		return m.objects()
	}
	q, err := rdma.NewSendQueue(m.qp.C(), rdma.QueueOptions{Unchecked: true})
	if err != nil {
		return err
	}
	cq, err := rdma.NewCompletionQueue(m.cq.C(), rdma.QueueOptions{})
	if err != nil {
		return err
	}
	m.wrGo(q)
	m.post = func(b *rdma.SendBatch, n int) error {
		for range n {
			if _, err := q.Post(b); err != nil {
				return err
			}
		}
		return nil
	}
	m.poll = func(wcs []ibv.WC, n int) (all int, err error) {
		for range n {
			found, err := cq.Poll(wcs)
			if err != nil {
				return 0, err
			}
			all += found
		}
		return all, nil
	}
	return nil
}

// objects creates a QP and a CQ.
func (m *implementation) objects() error {
	m.wrGo(m.qp)
	m.post = func(b *rdma.SendBatch, n int) error {
		for range n {
			if _, err := m.qp.PostSend(b); err != nil {
				return err
			}
		}
		return nil
	}
	m.poll = func(wcs []ibv.WC, n int) (all int, err error) {
		for range n {
			found, err := m.cq.Poll(wcs)
			if err != nil {
				return 0, err
			}
			all += found
		}
		return all, nil
	}
	return nil
}
