// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// TestNativeDMABuf compares registrations of dma-bufs by libmlx5 and by package native: requests, records and errors. A
// file in memory stands in for the dma-buf.
func TestNativeDMABuf(t *testing.T) {
	if os.Getenv(envInside) != "" {
		insideDMABuf(t)
		return
	}
	for _, e := range releases(t) {
		var texts [2]string
		for i, path := range []string{pathC, pathNative} {
			record := filepath.Join(t.TempDir(), "record")
			results := filepath.Join(t.TempDir(), "results")
			again(t, e, path, "GOVERBS_RECORD="+record, envResults+"="+results)
			texts[i] = strings.Join(regexp.MustCompile(`(?m)^object 7, method 4:.*\n  dma-buf.*$`).FindAllString(
				read(t, record), -1), "\n") + read(t, results)
		}
		assert.Equal(t, 5, strings.Count(texts[0], "method 4"), texts[0])
		assert.Equal(t, texts[0], texts[1], e.libraries.Release)
	}
}

func insideDMABuf(t *testing.T) {
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	var b runtime.Backend
	if os.Getenv(envInside) == pathNative {
		b = backend(t)
	}
	fd, err := unix.MemfdCreate("dma-buf", 0)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, 3*4096))
	u := newUser(t, b)
	for _, try := range []struct {
		offset, length, iova uint64
		fd                   int
		access               ibv.AccessFlags
	}{
		{0, 3 * 4096, 0, fd, 0},
		{4100, 100, 7<<20 + 4, fd, ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE},
		{0, 100, 4, fd, 0}, // other offsets in their pages
		{0, 100, 0, 1 << 20, 0},
		{0, 100, 0, -1, 0},
	} {
		mr, err := verbs.RegDMABufMR(u.pd, try.offset, try.length, try.iova, try.fd, try.access)
		if err != nil {
			var errno syscall.Errno
			require.True(t, errors.As(err, &errno))
			fmt.Fprintln(out, int(errno))
			continue
		}
		fmt.Fprintln(out, mr.Addr, mr.Length, mr.LKey, mr.RKey, mr.PD == ibv.PtrTo(u.pd), mr.Handle)
		require.NoError(t, verbs.DeregMR(mr))
	}
}

// TestNativeDMABufTransfer writes to a dma-buf.
func TestNativeDMABufTransfer(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again(t, emulated(t), pathC)
		again(t, emulated(t), pathNative)
		return
	}
	fd, err := unix.MemfdCreate("dma-buf", 0)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, 2*4096))
	device := openDevice(t)
	qps, mrs := pair(t, device, device.NewRC, rdma.QPParts{})
	const offset, iova = 4096, 1 << 30
	mr, err := qps[1].PD().RegDMABuf(fd, offset, 4096, iova, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	keep(t, mr, err)
	copy(mrs[0].Bytes(), "dma-buf")
	send(t, qps[0], func(b *rdma.SendBatch) { b.Write(1, iova+8, mr.RKey()).Add(mrs[0].SGE(0, 7)).Signaled() })
	wc := next(t, qps[0].SendCQ())
	require.NoError(t, rdma.CompletionErr(&wc))
	text := make([]byte, 7)
	_, err = unix.Pread(fd, text, offset+8)
	require.NoError(t, err)
	assert.Equal(t, "dma-buf", string(text))
}
