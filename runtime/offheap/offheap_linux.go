// SPDX-License-Identifier: BSD-2-Clause

package offheap

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mapMemory(size int, o Options) ([]byte, error) {
	flags, unit := unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, pageSize()
	if o.HugePages {
		huge, err := hugePageSize()
		if err != nil {
			return nil, err
		}
		flags, unit = flags|unix.MAP_HUGETLB, huge
	}
	b, err := unix.Mmap(-1, 0, roundUp(size, unit), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		if o.HugePages {
			return nil, fmt.Errorf("%w (are huge pages free? /proc/sys/vm/nr_hugepages has their number)", err)
		}
		return nil, err
	}
	if o.Node != 0 {
		if err := bind(b, o.Node-1); err != nil {
			unix.Munmap(b)
			return nil, fmt.Errorf("NUMA node %d: %w", o.Node-1, err)
		}
	}
	return b, nil
}

// discard releases the pages. The memory is zero afterwards.
func discard(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

// bind places untouched memory on a NUMA node: mbind(2) with MPOL_BIND.
func bind(b []byte, node int) error {
	const mpolBind = 2
	if node < 0 || node >= 1024 {
		return unix.EINVAL
	}
	var mask [1024/64 + 1]uint64
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		mpolBind, uintptr(unsafe.Pointer(&mask)), 1025, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// hugePageSize returns the default size of huge pages, from /proc/meminfo.
func hugePageSize() (int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "Hugepagesize:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("this kernel has no huge pages: %w", unix.ENOSYS)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
