// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package offheap_test

import (
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime/offheap"
)

func TestMap(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, page - 1, page, page + 1, 1 << 20} {
		m, err := offheap.Map(size, offheap.Options{})
		require.NoError(t, err)
		b := m.Bytes()
		assert.Zero(t, m.Address()%uintptr(page))
		assert.Len(t, b, (size+page-1)/page*page)
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d of %d is %#x", i, size, b[i])
			}
			b[i] = 0xff
		}
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
		assert.Empty(t, m.Bytes())
	}
	var none *offheap.Mapping
	assert.NoError(t, none.Close())
	for _, size := range []int{0, -1} {
		_, err := offheap.Map(size, offheap.Options{})
		assert.ErrorContains(t, err, "the size must be positive")
	}
	for _, size := range []int{math.MaxInt, math.MaxInt - page, 1 << 60} {
		_, err := offheap.Map(size, offheap.Options{})
		assert.Error(t, err)
	}
}

func TestMapHugePages(t *testing.T) {
	m, err := offheap.Map(1, offheap.Options{HugePages: true})
	free, _ := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err == nil {
		defer m.Close()
		assert.Greater(t, len(m.Bytes()), os.Getpagesize())
		assert.Zero(t, m.Address()%uintptr(len(m.Bytes())))
		m.Bytes()[len(m.Bytes())-1] = 1
		return
	}
	assert.Contains(t, []string{"0", ""}, strings.TrimSpace(string(free)), "there are free huge pages: %v", err)
	assert.Regexp(t, "huge pages", err)
	assert.ErrorContains(t, err, "mapping 1 bytes: ")
}

func TestMapNode(t *testing.T) {
	m, err := offheap.Map(1<<16, offheap.Options{Node: 1})
	if missing, _ := os.ReadFile("/sys/devices/system/node/online"); missing == nil ||
		os.Getenv("GOVERBS_TEST_EMULATOR") != "" {
		t.Logf("this machine reports no NUMA nodes: node 0 gives %v", err)
	} else {
		require.NoError(t, err)
		m.Bytes()[0] = 1
	}
	if m != nil {
		assert.NoError(t, m.Close())
	}
	for _, node := range []int{1001, 2000, -1} {
		_, err := offheap.Map(1, offheap.Options{Node: node})
		assert.ErrorContains(t, err, "NUMA node ")
		if os.Getenv("GOVERBS_TEST_EMULATOR") == "" {
			assert.ErrorIs(t, err, syscall.EINVAL)
		}
	}
}
