// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// envInfiniBand makes the emulated port an InfiniBand port. libmlx5's queue pair for tags connects to itself by LID,
// which RoCE lacks.
const envInfiniBand = "GOVERBS_EMULATED_INFINIBAND=1"

// insideTags runs a test again in a process over an InfiniBand port, with completions of both sizes. In that process it
// returns true.
func insideTags(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	for _, size := range []string{"64", "128"} {
		again(t, emulated(t), pathC, envInfiniBand, "MLX5_CQE_SIZE="+size)
	}
	return false
}

// tagTests lists the tests to run over each release. For the primary release, the tests run directly.
const tagTests = "TestTags|TestTagsAndReceives|TestTagLists|TestRendezvous|TestTagLimits|TestLostTags"

// tagSuite runs tagTests over a release.
func tagSuite(t *testing.T, e *Emulated) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := e.Command(ctx, testProgram(t, e, "."), "-test.v", "-test.timeout=100s", "-test.run=^("+tagTests+")$")
	cmd.Env = append(cmd.Env, envInside+"="+pathC, envInfiniBand)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for test := range strings.SplitSeq(tagTests, "|") {
		assert.Contains(t, string(out), "--- PASS: "+test+" (")
	}
}

// Parameters of the shared receive queue of tagged, and the sizes of a tag header and of a rendezvous header.
const (
	mostTags  = 4
	mostOps   = 8
	tagHeader = 16
	rndvSize  = 32
)

const tagValues = ibv.WC_STANDARD_FLAGS | ibv.WC_EX_WITH_TM_INFO

const matchedData = ibv.WC_TM_MATCH | ibv.WC_TM_DATA_VALID

// TestTags checks that messages arrive in the memory of their tags in any order, through ibv_post_srq_ops of libmlx5.
func TestTags(t *testing.T) {
	if !insideTags(t) {
		return
	}
	g := newTagged(t)
	for round := range 30 {
		for tag := range uint64(mostTags) {
			g.add(tag, g.there.SGE(2000*tag, 2000))
		}
		for i := range uint64(mostTags) {
			tag := (i + uint64(round)) % mostTags
			text := make([]byte, 1+round*7)
			for j := range text {
				text[j] = byte(round + j)
			}
			clear(g.there.Bytes())
			g.message(ibv.TMH_EAGER, tag, text, nil)
			c := g.expect(1000+tag, ibv.WC_TM_RECV, matchedData)
			assert.Equal(t, []any{tag, uint32(tag) + 7, uint32(len(text)), g.receiver.Num()},
				[]any{c.TM.Tag, c.TM.Priv, c.ByteLen, c.QPNum})
			assert.Equal(t, text, g.there.Bytes()[2000*tag:][:len(text)])
			g.sent()
		}
	}
}

// TestTagsAndReceives checks that a message without a matching tag goes to a receive and delays tags that are added
// before the program has reported it as seen, and that a message without a tag delays nothing.
func TestTagsAndReceives(t *testing.T) {
	if !insideTags(t) {
		return
	}
	g := newTagged(t)
	unexpected := uint32(0)
	for round := range uint64(20) {
		at := make([]ibv.SGE, 3)
		for i := range at {
			at[i] = g.there.SGE(8192+1000*uint64(i), 1000)
		}
		receive(t, g.srq.PostRecv, at...)
		text := make([]byte, 1+round*5)
		text[round] = 77
		g.message(ibv.TMH_NO_TAG, 1, text, nil)
		c := g.expect(100, ibv.WC_TM_NO_TAG, 0)
		assert.EqualValues(t, tagHeader+len(text), c.ByteLen)
		assert.Equal(t, g.here.Bytes()[:tagHeader+len(text)], g.there.Bytes()[8192:][:tagHeader+len(text)])
		g.sent()

		g.message(ibv.TMH_EAGER, 1, text, nil)
		c = g.expect(101, ibv.WC_TM_RECV, 0)
		assert.EqualValues(t, tagHeader+len(text), c.ByteLen)
		assert.Equal(t, g.here.Bytes()[:tagHeader+len(text)], g.there.Bytes()[8192+1000:][:tagHeader+len(text)])
		g.sent()
		unexpected++

		g.change(func(b *rdma.TagBatch) rdma.TagRequest {
			return b.AddTag(2, 1001, 1, ^uint64(0)).Add(g.there.SGE(0, 1000)).Signaled()
		})
		g.expect(2, ibv.WC_TM_ADD, ibv.WC_TM_SYNC_REQ)
		g.message(ibv.TMH_EAGER, 1, text, nil)
		g.expect(102, ibv.WC_TM_RECV, 0)
		g.sent()
		unexpected++
		g.change(func(b *rdma.TagBatch) rdma.TagRequest { return b.Sync(3, unexpected).Signaled() })
		g.expect(3, ibv.WC_TM_SYNC, 0)
		g.message(ibv.TMH_EAGER, 1, text, nil)
		g.expect(1001, ibv.WC_TM_RECV, matchedData)
		assert.Equal(t, text, g.there.Bytes()[:len(text)])
		g.sent()

		// reports all messages as seen, together with another operation
		g.change(func(b *rdma.TagBatch) rdma.TagRequest {
			return b.AddTag(4, 1002, 2, ^uint64(0)).Add(g.there.SGE(0, 1000)).Unexpected(unexpected).Signaled()
		})
		g.expect(4, ibv.WC_TM_ADD, 0)
		g.message(ibv.TMH_EAGER, 2, text, nil)
		g.expect(1002, ibv.WC_TM_RECV, matchedData)
		g.sent()
	}
}

// TestTagLists tests masks, removed tags, unsignaled operations, and full lists.
func TestTagLists(t *testing.T) {
	if !insideTags(t) {
		return
	}
	g := newTagged(t)
	for range 20 {
		first, second := g.add(1, g.there.SGE(0, 100)), g.add(2, g.there.SGE(100, 100))
		g.change(func(b *rdma.TagBatch) rdma.TagRequest { return b.DelTag(9, first).Signaled() })
		g.expect(9, ibv.WC_TM_DEL, 0)
		g.message(ibv.TMH_EAGER, 2, []byte("two"), nil)
		g.sent() // the message has arrived
		g.change(func(b *rdma.TagBatch) rdma.TagRequest { return b.DelTag(8, second).Signaled() })
		g.expect(1002, ibv.WC_TM_RECV, matchedData)
		c := g.next()
		assert.Equal(t, []any{ibv.WC_TM_ERR, uint64(8)}, []any{c.Status, c.WRID}, "a message has matched the tag")

		g.change(func(b *rdma.TagBatch) rdma.TagRequest {
			return b.AddTag(3, 1003, 0x1200, 0xff00).Add(g.there.SGE(0, 100)).Signaled()
		})
		g.expect(3, ibv.WC_TM_ADD, 0)
		// without a buffer
		g.change(func(b *rdma.TagBatch) rdma.TagRequest { return b.AddTag(4, 1004, 0, 0).Signaled() })
		g.expect(4, ibv.WC_TM_ADD, 0)
		g.message(ibv.TMH_EAGER, 0x1234, []byte("masked"), nil)
		g.expect(1003, ibv.WC_TM_RECV, matchedData)
		g.sent()
		g.message(ibv.TMH_EAGER, 0x1234, nil, nil)
		assert.Zero(t, g.expect(1004, ibv.WC_TM_RECV, matchedData).ByteLen)
		g.sent()

		g.change(func(b *rdma.TagBatch) rdma.TagRequest {
			return b.AddTag(5, 1005, 5, ^uint64(0)).Add(g.there.SGE(0, 9))
		})
		g.nothing() // unsignaled
		g.message(ibv.TMH_EAGER, 5, []byte("quiet"), nil)
		g.expect(1005, ibv.WC_TM_RECV, matchedData)
		g.sent()
	}
	full, err := rdma.NewTagBatch(mostTags+1, 1)
	keep(t, full, err)
	for i := range uint64(mostTags + 1) {
		full.AddTag(i, 1000+i, i, ^uint64(0)).Add(g.there.SGE(0, 9)).Signaled()
	}
	n, err := g.srq.PostTags(full)
	require.ErrorIs(t, err, syscall.ENOMEM)
	assert.Equal(t, mostTags, n)
	for i := range uint64(mostTags) {
		g.expect(i, ibv.WC_TM_ADD, 0)
	}
}

// TestRendezvous checks that announced data is read when a tag matches, that the sender is notified, and that the
// receive completes twice. If the buffer of the tag is too small, the program gets the headers.
func TestRendezvous(t *testing.T) {
	if !insideTags(t) {
		return
	}
	g := newTagged(t)
	for round := range 20 {
		n := round * 200
		clear(g.there.Bytes())
		g.add(6, g.there.SGE(0, 4000))
		data := g.announce(6, n, g.here.RKey())
		c := g.expect(1006, ibv.WC_TM_RECV, ibv.WC_TM_MATCH)
		assert.Equal(t, []any{uint64(6), uint32(13)}, []any{c.TM.Tag, c.TM.Priv})
		c = g.expect(1006, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID)
		assert.EqualValues(t, n, c.ByteLen)
		assert.Equal(t, data, g.there.Bytes()[:n])
		g.sent()
		receive(t, g.sender.PostRecv, g.here.SGE(2048, 64)) // until now the sender could not be notified
		wc := success(t, g.sender.RecvCQ(), ibv.WC_RECV, 100)
		require.EqualValues(t, rndvSize, wc.ByteLen)
		fin, sent := g.here.Bytes()[2048:][:rndvSize], g.here.Bytes()[:rndvSize]
		assert.Equal(t, ibv.TMH_FIN, ibv.TMHOp(fin[0]))
		assert.Equal(t, sent[1:], fin[1:], "the program gets the headers")

		g.add(7, g.there.SGE(0, 100))
		g.announce(7, 101, g.here.RKey())
		c = g.next()
		assert.Equal(t, []any{ibv.WC_TM_RNDV_INCOMPLETE, uint64(1007)}, []any{c.Status, c.WRID})
		assert.Equal(t, g.here.Bytes()[:rndvSize], g.there.Bytes()[:rndvSize])
		g.sent()
	}
	g.add(8, g.there.SGE(0, 100))
	g.announce(8, 50, g.here.RKey()^1)
	g.expect(1008, ibv.WC_TM_RECV, ibv.WC_TM_MATCH)
	c := g.next()
	assert.Equal(t, []any{ibv.WC_TM_RNDV_INCOMPLETE, uint64(1008)}, []any{c.Status, c.WRID}, "the data does not arrive")
	attr, _, err := g.receiver.Query(ibv.QP_STATE)
	require.NoError(t, err)
	assert.Equal(t, ibv.QPS_ERR, attr.QPState)
}

// TestTagLimits checks that operations that libmlx5 would drop, write beyond its memory or misinterpret are rejected.
func TestTagLimits(t *testing.T) {
	if !insideTags(t) {
		return
	}
	g := newTagged(t)
	plain, err := g.pd.Device().CreateCQ(64, nil, 0)
	keep(t, plain, err)
	_, err = matching(g.pd, plain)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "libmlx5 requires an extended completion queue for tag matching")
	wcs := make([]ibv.WC, 1)
	_, err = g.cq.Poll(wcs)
	require.ErrorContains(t, err, "use PollProgram or WaitProgram")
	_, err = g.cq.Wait(t.Context(), wcs)
	require.ErrorContains(t, err, "use PollProgram or WaitProgram")
	b, err := rdma.NewTagBatch(2, 2)
	keep(t, b, err)
	b.AddTag(1, 2, 3, 3).Add(g.there.SGE(0, 8))
	b.AddTag(2, 2, 3, 3).Add(g.there.SGE(0, 8)).Add(g.there.SGE(8, 8))
	_, err = g.srq.PostTags(b)
	require.ErrorContains(t, err, "WR 1 (id 0x2): 2 entries: the device's library would use the first 1")
	b.Reset()
	b.DelTag(1, mostTags)
	_, err = g.srq.PostTags(b)
	require.ErrorContains(t, err, "handle 4 does not exist")
	g.nothing()
}

// TestLostTags demonstrates that libmlx5 loses tags if a program deletes a tag whose message it has already polled.
func TestLostTags(t *testing.T) {
	if !insideTags(t) {
		return
	}
	g := newTagged(t)
	first := g.add(1, g.there.SGE(0, 100))
	g.add(2, g.there.SGE(0, 100))
	g.message(ibv.TMH_EAGER, 1, nil, nil)
	g.expect(1001, ibv.WC_TM_RECV, matchedData)
	g.message(ibv.TMH_EAGER, 2, nil, nil)
	g.expect(1002, ibv.WC_TM_RECV, matchedData)
	g.change(func(b *rdma.TagBatch) rdma.TagRequest { return b.DelTag(9, first).Signaled() })
	assert.Equal(t, ibv.WC_TM_ERR, g.next().Status)
	b, err := rdma.NewTagBatch(mostTags, 1)
	keep(t, b, err)
	for i := range uint64(mostTags) {
		b.AddTag(i, i, i, ^uint64(0)).Add(g.there.SGE(0, 9))
	}
	n, err := g.srq.PostTags(b)
	require.ErrorIs(t, err, syscall.ENOMEM)
	assert.Less(t, n, mostTags, "tags that libmlx5 has not lost")
}
