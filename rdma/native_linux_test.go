// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// nativeDevice is a device whose verbs are C functions: testdata/device.c, compiled by $CC or gcc. Without a compiler,
// libdevice.so in GOVERBS_TEST_LIBRARIES is used.
var nativeDevice = sync.OnceValues(func() (*runtime.Library, error) {
	l := &runtime.Library{Name: "device", SOName: "libdevice.so", Project: "rdma-core"}
	dir := os.Getenv("GOVERBS_TEST_LIBRARIES")
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "goverbs"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if err := compileDevice(dir); err != nil {
			return nil, err
		}
	}
	l.SetPath(filepath.Join(dir, "libdevice.so"))
	_, err := l.Symbol("device_post_send") // loads the library
	return l, err
})

func compileDevice(dir string) error {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	out, err := exec.Command(cc, "-O2", "-shared", "-fPIC", "-o", filepath.Join(dir, "libdevice.so"),
		"testdata/device.c").CombinedOutput()
	os.Stderr.Write(out)
	return err
}

// needC skips a test that calls C functions if the build cannot call them.
func needC(t testing.TB) {
	if !runtime.OpensLibraries {
		t.Skip("this build cannot call C (goverbs_static)")
	}
}

func native(t testing.TB) *device {
	needC(t)
	l, err := nativeDevice()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no C compiler: ", err)
	}
	require.NoError(t, err, "compile testdata/device.c")
	d := newDevice(t, ibv.QPT_RC)
	for name, slot := range map[string]*ibv.FuncPtr{
		"device_post_send": &d.context.Ops.PostSend, "device_post_recv": &d.context.Ops.PostRecv,
		"device_poll_cq": &d.context.Ops.PollCQ, "device_req_notify_cq": &d.context.Ops.ReqNotifyCQ,
	} {
		address, err := l.Symbol(name)
		require.NoError(t, err)
		*slot = ibv.FuncPtr(address)
	}
	// All tests of the process share the device, so discard the state of earlier tests.
	cq, err := NewCompletionQueue(&d.cq, QueueOptions{Way: "system", Unchecked: true})
	require.NoError(t, err)
	for n, wcs := 1, make([]ibv.WC, 64); n > 0; {
		n, err = cq.Poll(wcs)
		require.NoError(t, err)
	}
	return d
}

func nativeOptions(way string) QueueOptions {
	o := options(1024, 4, 64)
	o.Way = way
	return o
}

func TestProviderRecognizedByCode(t *testing.T) {
	d := native(t)
	o := nativeOptions("")
	q := sendQueue(t, d, o)
	assert.Equal(t, "device", q.Provider())
	assert.Equal(t, runtime.Blocking, q.Way(), "unknown provider")
	o.Providers = []Provider{{Name: "device", Pure: PostSend | PostRecv | Poll | ReqNotify}}
	q = sendQueue(t, d, o)
	assert.Equal(t, runtime.System, q.Way())
}

func TestNativeReqNotify(t *testing.T) {
	for _, way := range []string{"blocking", "system"} {
		cq, err := NewCompletionQueue(&native(t).cq, nativeOptions(way))
		require.NoError(t, err)
		assert.NoError(t, cq.ReqNotify(false))
		err = cq.ReqNotify(true)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.EqualError(t, err, "ibv_req_notify_cq: invalid argument")
	}
}

// Building, patching, posting and polling do not allocate, with either way to call C, checked or unchecked.
func TestNoAllocation(t *testing.T) {
	if !runtime.Fast {
		t.Skip("calls of this build go through purego, which allocates")
	}
	for _, way := range []string{"blocking", "system"} {
		for _, unchecked := range []bool{false, true} {
			d := native(t)
			o := nativeOptions(way)
			o.Unchecked = unchecked
			q := sendQueue(t, d, o)
			recv, err := NewRecvQueue(&d.qp, o)
			require.NoError(t, err)
			cq, err := NewCompletionQueue(&d.cq, o)
			require.NoError(t, err)
			b, r := sendBatch(t, 16, 1, 8), recvBatch(t, 16, 1)
			wcs := make([]ibv.WC, 16)
			for n := 1; n > 0; { // discard completions of other tests
				n, err = cq.Poll(wcs)
				require.NoError(t, err)
			}
			cq.Track(0x12, q, nil)
			recvWCs := make([]ibv.WC, 16)
			for i := range recvWCs {
				recvWCs[i] = ibv.WC{WRID: uint64(i), QPNum: 0x12, Opcode: ibv.WC_RECV}
			}
			round := func(post func(*SendBatch) (int, error), postRecv func(*RecvBatch) (int, error),
				poll func([]ibv.WC) (int, error)) func() {
				return func() {
					writes(b, 0, 15)
					b.Send(15).Inline([]byte("8 bytes!")).Signaled()
					_, err1 := post(b)
					for i := range b.WRs() {
						b.WR(i).WRID += 16
						b.SGEs(i)[0].Length--
					}
					_, err2 := post(b)
					r.Reset()
					for i := range uint64(16) {
						r.Recv(i).SGE(1, 2, 3)
					}
					_, err3 := postRecv(r)
					recv.Retire(recvWCs)
					n, err4 := poll(wcs)
					if err1 != nil || err2 != nil || err3 != nil || err4 != nil || n != 4 {
						panic([]any{err1, err2, err3, err4, n})
					}
				}
			}
			assert.Zero(t, testing.AllocsPerRun(100, round(q.Post, recv.Post, cq.Poll)), "%s, unchecked: %v", way,
				unchecked)
		}
	}
}

// After C has rejected a request, the slots of the requests before it are taken.
func TestNativeRefusal(t *testing.T) {
	for _, way := range []string{"blocking", "system"} {
		d := native(t)
		o := nativeOptions(way)
		q := sendQueue(t, d, o)
		b := sendBatch(t, 4, 1, 0)
		writes(b, 0, 4)
		for round := range 3 {
			b.WR(2).WRID = ^uint64(0)
			posted, err := q.Post(b)
			assert.Equal(t, 2, posted)
			var e *PostError
			require.ErrorAs(t, err, &e)
			assert.Equal(t, 2, e.Index)
			assert.ErrorIs(t, err, syscall.ENOMEM)
			assert.Equal(t, 1024-6*round-2, q.Free())
			b.WR(2).WRID = 5
			posted, err = q.Post(b)
			require.NoError(t, err)
			assert.Equal(t, 4, posted)
		}
	}
}

// The returned number of posted requests does not depend on the previous post.
func TestPostedAfterFailure(t *testing.T) {
	for _, way := range []string{"blocking", "system"} {
		for _, unchecked := range []bool{false, true} {
			d := native(t)
			o := nativeOptions(way)
			o.Unchecked = unchecked
			q := sendQueue(t, d, o)
			recv, err := NewRecvQueue(&d.qp, o)
			require.NoError(t, err)
			b, r := sendBatch(t, 4, 1, 0), recvBatch(t, 4, 1)
			for range 2 {
				for _, n := range []int{4, 0, 4, 5, 4, 2, 4, 4} {
					writes(b, 0, n)
					posted, err := q.Post(b)
					assert.Equal(t, n > 4 || n == 0, err != nil)
					assert.Equal(t, n%5, posted)
					r.Reset()
					for range n {
						r.Recv(1)
					}
					posted, err = recv.Post(r)
					assert.Equal(t, n > 4 || n == 0, err != nil)
					assert.Equal(t, n%5, posted)
				}
				posted, err := q.PostRange(writes(b, 0, 4), 1, 3)
				require.NoError(t, err)
				assert.Equal(t, 2, posted)
				_, err = q.Post(writes(b, 0, 1))
				require.NoError(t, err)
				b.Reset() // same length as the previous batch
				b.Send(1).SGE(1, 2, 3).SGE(4, 5, 6)
				_, err = q.Post(b)
				assert.Error(t, err)
			}
		}
	}
}
