// SPDX-License-Identifier: BSD-2-Clause

package watch

import (
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var packageVariable [64]byte

func TestOnHeap(t *testing.T) {
	for name, c := range map[string]struct {
		b    *byte
		heap bool
	}{
		"small object":     {&make([]byte, 3)[1], true},
		"large object":     {&make([]byte, 1<<20)[1<<20-1], true},
		"with pointers":    {(*byte)(unsafe.Pointer(&make([]*byte, 10)[3])), true},
		"package variable": {&packageVariable[3], false},
		"mmap":             {&mmap(t, 4096)[1], false},
		"string constant":  {unsafe.StringData("constant"), false},
	} {
		assert.Equal(t, c.heap, OnHeap(c.b), name)
	}
}

func mmap(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func watch(b []byte, notify func()) (*Watch, error) {
	return Memory(uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), notify)
}

// TestWatch: a watch detects changes of its own pages before the call that changes them returns.
func TestWatch(t *testing.T) {
	page := os.Getpagesize()
	b := mmap(t, 4*page)
	message := make(chan string, 4)
	first, err := watch(b[:2*page], func() { message <- "first" })
	require.NoError(t, err)
	defer first.Close()
	second, err := watch(b[2*page-1:2*page+1], func() { message <- "second" })
	require.NoError(t, err)
	defer second.Close()
	b[0] = 1
	assert.True(t, first.Same())
	assert.True(t, second.Same())
	require.NoError(t, unix.Madvise(b[:page], unix.MADV_DONTNEED))
	assert.False(t, first.Same())
	assert.True(t, first.Gone())
	assert.True(t, second.Same())
	assert.False(t, second.Gone())
	assert.Equal(t, "first", <-message)
	require.NoError(t, unix.Mprotect(b[2*page:], unix.PROT_READ)) // the pages stay
	assert.True(t, second.Same())
	_, err = watch(b[:1], nil)
	assert.ErrorContains(t, err, "madvise")
	require.NoError(t, unix.Munmap(b))
	assert.False(t, second.Same())
	assert.Equal(t, "second", <-message)
	first.Close()
	second.Close()
	assert.Empty(t, message)
	assert.False(t, second.Same())
}

// TestClose: a closed watch reports no changes, and other watches still do.
func TestClose(t *testing.T) {
	b := mmap(t, 1<<16)
	for range 3 {
		closed, err := watch(b, func() { t.Error("notified after Close") })
		require.NoError(t, err)
		open, err := watch(b[:1], func() {})
		require.NoError(t, err)
		closed.Close()
		closed.Close()
		require.NoError(t, unix.Madvise(b[8192:], unix.MADV_DONTNEED)) // reported, but outside the watch
		assert.True(t, open.Same())
		_, err = watch(b[8192:8193], func() {})
		assert.Error(t, err)
		require.NoError(t, unix.Munmap(b))
		assert.False(t, open.Same())
		open.Close()
		b = mmap(t, 1<<16)
	}
}

func TestRefused(t *testing.T) {
	b := mmap(t, 1<<16)
	require.NoError(t, unix.MunmapPtr(unsafe.Pointer(&b[4096]), 4096))
	_, err := watch(b, func() {})
	assert.ErrorContains(t, err, "no memory is mapped")
	_, err = watch(b[4096:4097], func() {})
	assert.Error(t, err)
	exe, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer exe.Close()
	file, err := unix.Mmap(int(exe.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer unix.Munmap(file)
	_, err = watch(file, func() {})
	assert.Error(t, err)
	shared, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(shared)
	_, err = watch(shared, func() {})
	assert.Error(t, err)
}

// TestForbidden: if a system call filter forbids userfaultfd, every call of Memory returns an error.
func TestForbidden(t *testing.T) {
	if os.Getenv("GOVERBS_TEST_FORBIDDEN") != "" {
		forbidUserfaultfd(t)
		for range 2 {
			_, err := watch(mmap(t, 4096), func() {})
			assert.ErrorIs(t, err, unix.EPERM)
			assert.ErrorContains(t, err, "userfaultfd")
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestForbidden$")
	cmd.Env = append(os.Environ(), "GOVERBS_TEST_FORBIDDEN=1")
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

// forbidUserfaultfd makes the system call fail with EPERM in all threads, as container engines do.
func forbidUserfaultfd(t *testing.T) {
	const filterMode, allThreads = 1, 1 // SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_USERFAULTFD, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x50000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                   // SECCOMP_RET_ALLOW
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Skip("this kernel has no filters: ", err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, filterMode, allThreads, uintptr(unsafe.Pointer(&program)))
	require.Zero(t, errno)
}
