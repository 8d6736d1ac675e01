// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"math/rand/v2"
	goruntime "runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Close of an object with children fails, names them, and leaves the object usable. Closing the children first closes
// all objects.
func TestParentsWithChildren(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	mr, err := pd.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	for object, needed := range map[interface{ Close() error }]string{d: pd.name, pd: mr.name, e.channel: e.cq.name,
		e.cq: e.qp.name} {
		err := object.Close()
		assert.ErrorIs(t, err, ErrInUse)
		assert.ErrorIs(t, err, syscall.EBUSY)
		assert.ErrorContains(t, err, "needed by "+needed)
	}
	assert.ErrorContains(t, e.cq.Close(), "needed by "+e.qp.name+", which",
		"the queue pair is named once, although it uses the queue twice")
	connectToSelf(t, e.qp)
	e.write(1, 1)
	n, err := e.cq.Wait(timeout(t), e.wcs)
	require.NoError(t, err)
	assert.Equal(t, 1, n)

	require.NoError(t, e.qp.Close())
	for _, object := range []interface{ Close() error }{mr} {
		require.NoError(t, object.Close())
		require.NoError(t, object.Close(), "again")
	}
}

// If a queue pair is created while its completion queue is being closed, the completion queue stays open and usable.
func TestChildCreatedDuringClose(t *testing.T) {
	f, d, pd := fakePD(t)
	fakeQP(t, pd)
	plain, started, proceed := f.Do["ibv_create_qp"], make(chan bool), make(chan bool)
	f.Do["ibv_create_qp"] = func(a []uintptr) uintptr {
		started <- true
		<-proceed
		return plain(a)
	}
	queue, err := d.CreateCQ(8, nil, 0)
	queue = keep(t, queue, err)
	created := make(chan *QP)
	go func() {
		created <- must(pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RAW_PACKET, SendCQ: queue.Ptr(), RecvCQ: queue.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, QueueOptions{}))
	}()
	<-started
	closed := make(chan error)
	go func() { closed <- queue.Close() }()
	for queue.queue.refused() == nil {
		goruntime.Gosched()
	}
	proceed <- true
	qp := <-created
	assert.ErrorIs(t, <-closed, ErrInUse)
	n, err := queue.Poll(make([]ibv.WC, 1))
	assert.NoError(t, err)
	assert.Zero(t, n)
	require.NoError(t, qp.Close())
}

// A queue pair that C fails to destroy stays usable.
func TestCloseThatFails(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	e.write(1, 1)
	n, err := e.cq.Wait(timeout(t), e.wcs)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, 16, e.qp.SendQueue().Free(), "its slots are still tracked")

	end := e.qp.destroyFunc
	e.qp.destroyFunc = func(*ibv.QP) error { return syscall.EBUSY }
	assert.ErrorIs(t, e.qp.Close(), syscall.EBUSY)
	e.qp.destroyFunc = func(*ibv.QP) error { return &runtime.CallError{Function: "ibv_destroy_qp", Errno: syscall.EIO} }
	err = e.qp.Close()
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, err, "RDMAV_ALLOW_DISASSOC_DESTROY=1")
	e.qp.destroyFunc = end
	e.write(2, 1)
	n, err = e.cq.Wait(timeout(t), e.wcs)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, 16, e.qp.SendQueue().Free())
}

// Every method of a closed object returns an error or its last value. None reads memory that C has freed.
func TestUseAfterClose(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	ah, err := pd.CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1,
		GRH: ibv.GlobalRoute{DGID: must(d.FindGID(GIDQuery{})).GID, SGIDIndex: 1}})
	require.NoError(t, err)
	connectToSelf(t, e.qp)
	qp, cq, num, lkey, rkey := e.qp, e.cq, e.qp.Num(), mr.LKey(), mr.RKey()
	records := [][]byte{bytesOf(qp.c), bytesOf(cq.c), bytesOf(mr.c), bytesOf(pd.c), bytesOf(srq.c), bytesOf(d.c),
		bytesOf(ah.c)}
	for _, o := range []interface{ Close() error }{ah, qp, cq, e.channel, srq, mr, pd} {
		require.NoError(t, o.Close())
	}
	require.NoError(t, d.Close())
	for _, record := range records { // a read of this memory would return garbage; the fabric clears it before reuse
		for i := range record {
			record[i] = 0xa5
		}
	}
	assert.Equal(t, num, qp.Num())
	assert.Equal(t, ibv.QPT_RC, qp.Type())
	assert.Equal(t, ibv.QPS_UNKNOWN, qp.State())
	assert.Equal(t, lkey, mr.LKey())
	assert.Equal(t, rkey, mr.RKey())
	assert.Equal(t, lkey, mr.Region().LKey)
	assert.Equal(t, 1, d.CompVectors())
	assert.Nil(t, qp.C())
	assert.Nil(t, qp.CEx())
	assert.Nil(t, cq.C())
	assert.Nil(t, mr.C())
	assert.Nil(t, pd.C())
	assert.Nil(t, srq.C())
	assert.Nil(t, ah.C())
	assert.Nil(t, d.C())
	e.recv.Reset()
	e.recv.Recv(1)
	attr := &ibv.QPAttr{QPState: ibv.QPS_ERR}
	for name, use := range map[string]func() error{
		"post":      func() error { _, err := qp.PostSend(emptyWrites(e.send, 1, 1)); return err },
		"receive":   func() error { _, err := qp.PostRecv(e.recv); return err },
		"srq":       func() error { _, err := srq.PostRecv(e.recv); return err },
		"modify":    func() error { return qp.Modify(attr, ibv.QP_STATE) },
		"query":     func() error { _, _, err := qp.Query(ibv.QP_STATE); return err },
		"drain":     func() error { return qp.Drain(context.Background()) },
		"endpoint":  func() error { _, err := qp.Endpoint(); return err },
		"path":      func() error { _, err := qp.Path(Endpoint{}); return err },
		"connect":   func() error { return qp.Connect(Endpoint{}) },
		"poll":      func() error { _, err := cq.Poll(e.wcs); return err },
		"poll none": func() error { _, err := cq.Poll(nil); return err },
		"wait":      func() error { _, err := cq.Wait(context.Background(), e.wcs); return err },
		"wait none": func() error { _, err := cq.Wait(context.Background(), nil); return err },
		"busy":      func() error { _, err := cq.WaitBusy(context.Background(), e.wcs); return err },
		"arm":       func() error { return cq.ReqNotify(false) },
		"resize":    func() error { return cq.Resize(10) },
		"channel":   func() error { _, err := e.channel.Wait(context.Background()); return err },
		"limit":     func() error { return srq.Modify(&ibv.SRQAttr{}, ibv.SRQ_LIMIT) },
		"register":  func() error { _, err := pd.RegMR(make([]byte, 8), 0); return err },
		"rereg":     func() error { return mr.Rereg(ibv.REREG_MR_CHANGE_ACCESS, nil, nil, 0) },
		"create":    func() error { _, err := pd.CreateQP(&ibv.QPInitAttr{}, QueueOptions{}); return err },
		"alloc":     func() error { _, err := d.AllocPD(); return err },
		"device":    func() error { _, err := d.Query(); return err },
		"events":    func() error { _, err := d.Event(context.Background()); return err },
	} {
		assert.ErrorIs(t, use(), ErrClosed, name)
	}
	qp.SendQueue().Retire([]ibv.WC{{QPNum: num}})
	qp.RecvQueue().Retire([]ibv.WC{{QPNum: num, Opcode: ibv.WC_RECV}})

	other := openSoft(t)
	pd2, err := other.AllocPD()
	closeAtEnd(t, pd2, err)
	cq2, err := must(OpenOn(other.Info().Backend, "soft0")).CreateCQ(4, nil, 0)
	require.NoError(t, err)
	defer cq2.device.Close()
	defer cq2.Close()
	_, err = pd2.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq2.Ptr(), RecvCQ: cq2.Ptr(), Cap: smallCap},
		QueueOptions{})
	assert.ErrorContains(t, err, "SendCQ is not an open object of soft0")
	_, err = pd2.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: smallCap},
		QueueOptions{})
	assert.ErrorIs(t, err, ErrClosed)
	assert.ErrorContains(t, err, "SendCQ: closed")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Two goroutines close each object while others post, poll, wait, arm, modify, drain and create objects.
func TestCloseDuringUse(t *testing.T) {
	for range rounds(t, 60) {
		d := openSoft(t)
		pd, err := d.AllocPD()
		require.NoError(t, err)
		e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
		connectToSelf(t, e.qp)
		ctx, cancel := context.WithCancel(context.Background())
		var users sync.WaitGroup
		use := func(closed func() bool, f func() error) {
			users.Go(func() {
				for range 1 << 30 {
					if err := f(); err != nil && closed() {
						return
					}
					goruntime.Gosched()
				}
			})
		}
		batches := [2]*SendBatch{e.send, sendBatch(t, 4, 1, 0)}
		for i, b := range batches {
			use(e.qp.isClosed, func() error { _, err := e.qp.PostSend(emptyWrites(b, uint64(i), 3)); return err })
		}
		use(e.qp.isClosed, func() error {
			e.recv.Reset()
			e.recv.Recv(1)
			_, err := e.qp.PostRecv(e.recv)
			return err
		})
		use(e.qp.isClosed, func() error { return e.qp.Drain(ctx) })
		use(e.qp.isClosed, func() error { return e.qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE) })
		use(e.qp.isClosed, func() error { _, err := e.qp.Endpoint(); e.qp.State(); e.qp.Num(); return err })
		use(e.qp.isClosed, func() error { local, _ := e.qp.Endpoint(); return e.qp.Connect(local) })
		use(e.cq.isClosed, func() error { _, err := e.cq.Poll(make([]ibv.WC, 2)); return err })
		use(e.cq.isClosed, func() error { _, err := e.cq.Wait(ctx, make([]ibv.WC, 1)); return err })
		use(e.cq.isClosed, func() error { _, err := e.cq.WaitSolicited(ctx, make([]ibv.WC, 1)); return err })
		use(e.cq.isClosed, func() error { return e.cq.ReqNotify(false) })
		use(pd.isClosed, func() error {
			qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_UC, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
				Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}, QueueOptions{})
			if err == nil {
				err = qp.Close()
			}
			return err
		})
		for end, n := time.Now().Add(20*time.Millisecond), rand.IntN(2000); n > 0 && time.Now().Before(end); n-- {
			goruntime.Gosched() // let the other goroutines run on a single processor
		}
		var closers sync.WaitGroup
		for range 2 {
			closers.Go(func() {
				assert.NoError(t, e.qp.Close())
				for _, o := range []interface{ Close() error }{e.cq, pd, e.channel, d} {
					for err := o.Close(); err != nil; err = o.Close() {
						if !assert.ErrorIs(t, err, ErrInUse) { // the current queue pair uses it
							return
						}
						goruntime.Gosched()
					}
				}
			})
		}
		closers.Wait()
		cancel()
		users.Wait()
	}
}

// A queue is destroyed while another goroutine has read, but not acknowledged, one of its events. C waits for the
// acknowledgement.
func TestUnacknowledgedEventDuringDestroy(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	connectToSelf(t, e.qp)
	require.NoError(t, e.cq.ReqNotify(false))
	e.write(1, 1)
	require.True(t, e.channel.get()) // reads the event
	require.NoError(t, e.channel.failure)
	cq := d.objects.find(uintptr(*e.channel.cq)).(*CQ)
	require.NoError(t, e.qp.Close())
	closed := make(chan error, 1)
	go func() { closed <- cq.Close() }()
	for d.objects.find(uintptr(*e.channel.cq)) != nil {
		goruntime.Gosched()
	}
	for range 1000 { // while the queue is being destroyed
		goruntime.Gosched()
	}
	cq.acknowledge()
	assert.NoError(t, requireEnd(t, closed))
}

// A new queue pair that reuses the number of one being closed has all of its slots.
func TestQPNumReuseDuringClose(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	second := e.newQP(ibv.QPT_RC, nil, QueueOptions{})
	defer second.Close()
	old := e.qp.destroyFunc
	e.qp.destroyFunc = func(c *ibv.QP) error { // another queue pair gets the number before the first Close returns
		err := old(c)
		e.cq.queue.Track(e.qp.Num(), second.send, nil)
		return err
	}
	require.NoError(t, e.qp.Close())
	assert.Equal(t, second.send, e.cq.queue.trackedAs(e.qp.Num()).Send)
}

// A lookup by address, as for events, never returns a partially initialized object.
func TestLookupFindsInitializedObjects(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	done := make(chan struct{})
	var finder sync.WaitGroup
	finder.Go(func() {
		for {
			d.objects.each(func(o any) {
				switch o := o.(type) {
				case *CQ:
					assert.NotNil(t, o.c)
					assert.Positive(t, o.entries)
				case *MR:
					assert.NotNil(t, o.c)
					assert.NotNil(t, o.now.Load())
				}
			})
			select {
			case <-done:
				return
			default:
				goruntime.Gosched()
			}
		}
	})
	memory := make([]byte, 8)
	for range 1000 {
		cq, err := d.CreateCQ(1, nil, 0)
		require.NoError(t, err)
		mr, err := pd.RegMR(memory, 0)
		require.NoError(t, err)
		require.NoError(t, CloseAll(nil, cq, mr))
	}
	close(done)
	finder.Wait()
}
