// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"os"
	"regexp"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

// TestStateInBytes compares the sizes of a queue pair and of a completion queue with docs/performance.md and the doc
// comments, on 64-bit machines.
func TestStateInBytes(t *testing.T) {
	qp, cq := unsafe.Sizeof(QP{}), unsafe.Sizeof(CQ{})+unsafe.Sizeof(CompletionQueue{})
	send, recv := unsafe.Sizeof(SendQueue{}), unsafe.Sizeof(RecvQueue{})
	if unsafe.Sizeof(uintptr(0)) == 8 {
		for file, want := range map[string]string{
			"qp.go":        fmt.Sprintf("QP uses %d bytes", qp),
			"cq.go":        fmt.Sprintf("CQ uses %d bytes", cq),
			"sendqueue.go": fmt.Sprintf("send queue occupies %d bytes and a receive queue %d", send, recv),
		} {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			found := strings.Contains(strings.ReplaceAll(string(text), "\n// ", " "), want)
			assert.True(t, found, "%s does not contain: %s", file, want)
		}
	}
	page := documentedBytes(t)
	assert.Equal(t, int(qp), page("`QP`"))
	assert.Equal(t, int(send), page("its `SendQueue`"))
	assert.Equal(t, int(recv), page("its `RecvQueue`, or that of an `SRQ`"))
	assert.Equal(t, int(cq), page("`CQ` and its `CompletionQueue`"))

	for name, has := range map[string]int{
		"a queue pair of 64 sends and 64 receives, whole":       heapOfQueuePair(t, 64),
		"a queue pair of 1,024 sends and 1,024 receives, whole": heapOfQueuePair(t, 1024),
		"a completion queue, whole":                             heapOfCompletionQueue(t),
	} {
		assert.InEpsilon(t, page(name), has, 0.1, "%s: %d bytes", name, has)
	}
}

// documentedBytes reads the table of docs/performance.md and returns a function that looks up a row in this platform's
// column.
func documentedBytes(t *testing.T) func(of string) int {
	text, err := os.ReadFile("../docs/performance.md")
	require.NoError(t, err)
	return func(of string) int {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(of) + ` \| ([\d,]+) \| ([\d,]+) \|$`).FindSubmatch(text)
		require.NotNil(t, row, "docs/performance.md has no row of two numbers: %s", of)
		column := map[uintptr]int{8: 1, 4: 2}[unsafe.Sizeof(uintptr(0))]
		n, err := strconv.Atoi(strings.ReplaceAll(string(row[column]), ",", ""))
		require.NoError(t, err)
		return n
	}
}

// heapOfQueuePair returns the Go heap used by each of 200 queue pairs in one completion queue.
func heapOfQueuePair(t *testing.T, depth int) int {
	f, d, pd := fakePD(t)
	f.QueuePairs()
	create, created := f.Do["ibv_create_qp"], uint32(0)
	f.Do["ibv_create_qp"] = func(a []uintptr) uintptr {
		qp := create(a)
		created++
		ibv.Ptr[ibv.QP](qp).Deref().QPNum = created
		return qp
	}
	cq, err := d.CreateCQ(200*2*depth, nil, 0)
	cq = keep(t, cq, err)
	return heapOf(t, func() (*QP, error) {
		return pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: uint32(depth), MaxSendSGE: 1, MaxRecvWR: uint32(depth), MaxRecvSGE: 1}},
			QueueOptions{})
	})
}

// heapOfCompletionQueue returns the Go heap used by each of 200 completion queues without queue pairs.
func heapOfCompletionQueue(t *testing.T) int {
	f, d, _ := fakePD(t)
	f.QueuePairs()
	return heapOf(t, func() (*CQ, error) { return d.CreateCQ(64, nil, 0) })
}

// heapOf returns the Go heap used by each of 200 objects, without the fake device's records. It is the median of five
// measurements, since memory that earlier tests leave to finalizers and pools may be freed during one of them.
func heapOf[T Object](t *testing.T, create func() (T, error)) int {
	var sizes []int
	for range 5 {
		sizes = append(sizes, measureHeap(t, create))
	}
	slices.Sort(sizes)
	return sizes[len(sizes)/2]
}

func measureHeap[T Object](t *testing.T, create func() (T, error)) int {
	var before, after goruntime.MemStats
	all := make([]Object, 200)
	goruntime.GC()
	goruntime.GC() // collect objects of other tests
	goruntime.ReadMemStats(&before)
	for i := range all {
		o, err := create()
		require.NoError(t, err)
		all[i] = o
	}
	fakedevice.Current().Took() // drop its log of calls
	goruntime.GC()
	goruntime.ReadMemStats(&after)
	assert.NoError(t, CloseAll(nil, all...))
	return (int(after.HeapAlloc) - int(before.HeapAlloc)) / len(all)
}
