// SPDX-License-Identifier: BSD-2-Clause

package native_test

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/native"
)

// open opens the device of a guest without rdma-core.
func open(t *testing.T) *rdma.Device {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("this is no guest: go run ./conformance/vm/cmd/vmtest -- ./rdma/native")
	}
	d, err := rdma.Open(native.Prefix + os.Getenv("GOVERBS_DEVICE"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// isIWARP reports whether the guest has Soft-iWARP instead of Soft-RoCE.
func isIWARP() bool { return strings.HasPrefix(os.Getenv("GOVERBS_DEVICE"), "siw") }

// notIWARP skips a test of what iWARP lacks.
func notIWARP(t *testing.T, why string) {
	if isIWARP() {
		t.Skip("iWARP: " + why)
	}
}

// pair is two connected queue pairs of one device, each with 4 KiB of memory.
type pair struct {
	a, b     *rdma.QP
	amr, bmr *rdma.MR
}

const access = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC

func connected(t *testing.T, d *rdma.Device) *pair {
	notIWARP(t, "only the connection manager connects queue pairs")
	p := unconnected(t, d)
	ea, err := p.a.Endpoint()
	require.NoError(t, err)
	eb, err := p.b.Endpoint()
	require.NoError(t, err)
	require.NoError(t, p.a.Connect(eb))
	require.NoError(t, p.b.Connect(ea))
	return p
}

func unconnected(t *testing.T, d *rdma.Device) *pair {
	p := &pair{}
	for _, end := range []struct {
		qp **rdma.QP
		mr **rdma.MR
	}{{&p.a, &p.amr}, {&p.b, &p.bmr}} {
		qp, err := d.NewRC(rdma.QPParts{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, qp.Close()) })
		*end.qp = qp
		*end.mr, err = qp.RegMR(make([]byte, 4096), access)
		require.NoError(t, err)
	}
	return p
}

func wait(t *testing.T, cq *rdma.CQ) ibv.WC {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wc [1]ibv.WC
	n, err := cq.Wait(ctx, wc[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, rdma.CompletionErr(&wc[0]))
	return wc[0]
}

func TestGuestOperations(t *testing.T) {
	p := connected(t, open(t))
	a, b := p.amr.Bytes(), p.bmr.Bytes()
	sends, recvs := must(rdma.NewSendBatch(4, 1, 64)), must(rdma.NewRecvBatch(1, 1))
	t.Cleanup(func() { sends.Close(); recvs.Close() })
	post := func() {
		t.Helper()
		n, err := p.a.PostSend(sends)
		require.NoError(t, err)
		require.Equal(t, sends.Len(), n)
		sends.Reset()
	}

	copy(a, "one")
	recvs.Recv(7).Add(p.bmr.SGE(0, 64))
	_, err := p.b.PostRecv(recvs)
	require.NoError(t, err)
	sends.SendImm(1, 5).Add(p.amr.SGE(0, 3)).Signaled()
	post()
	assert.EqualValues(t, 1, wait(t, p.a.SendCQ()).WRID)
	wc := wait(t, p.b.RecvCQ())
	assert.EqualValues(t, 7, wc.WRID)
	assert.EqualValues(t, 3, wc.ByteLen)
	assert.Equal(t, ibv.WC_RECV, wc.Opcode)
	assert.Equal(t, "one", string(b[:3]))

	sends.Write(2, p.bmr.Address()+100, p.bmr.RKey()).Inline([]byte("two"))
	sends.Read(3, p.bmr.Address()+100, p.bmr.RKey()).Add(p.amr.SGE(200, 3)).Signaled()
	post()
	assert.Equal(t, ibv.WC_RDMA_READ, wait(t, p.a.SendCQ()).Opcode)
	assert.Equal(t, "two", string(a[200:203]))
	assert.Equal(t, "two", string(b[100:103]))

	b[512] = 40
	sends.FetchAdd(4, p.bmr.Address()+512, p.bmr.RKey(), 2).Add(p.amr.SGE(512, 8)).Signaled()
	post()
	wait(t, p.a.SendCQ())
	assert.Equal(t, append([]byte{40}, make([]byte, 7)...), a[512:520])
	assert.EqualValues(t, 42, b[512])
	assert.False(t, bytes.Equal(a, b))
}

// TestGuestForkAndExec: files of a device are closed in other programs, and children do not inherit its queues.
func TestGuestForkAndExec(t *testing.T) {
	unconnected(t, open(t))
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	seen := 0
	for _, f := range files {
		target, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err != nil || !strings.Contains(target, "infiniband") {
			continue
		}
		fd, err := strconv.Atoi(f.Name())
		require.NoError(t, err)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		assert.NotZero(t, flags&unix.FD_CLOEXEC, target)
		seen++
	}
	assert.GreaterOrEqual(t, seen, 2, "the device and its asynchronous events")
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	seen = 0
	queue := false
	for line := range strings.Lines(string(text)) {
		name, flags, ok := strings.Cut(line, ":")
		switch {
		case strings.Contains(line, "/dev/infiniband/"):
			queue = true
		case ok && name == "VmFlags" && queue:
			assert.Contains(t, strings.Fields(flags), "dc", "the flag of MADV_DONTFORK")
			queue = false
			seen++
		}
	}
	assert.GreaterOrEqual(t, seen, 6, "send, receive and completion queues of two queue pairs")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
