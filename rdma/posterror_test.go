// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// TestPostErrorTypes: the error of every failed post matches an errno with errors.Is and both error types with
// errors.As.
func TestPostErrorTypes(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	send := sendQueue(t, d, options(1, 1, 0))
	recv, err := NewRecvQueue(&d.qp, options(1, 1, 0))
	require.NoError(t, err)
	x := newExtended(t, ibv.QPT_RC)
	programs := x.queue(t, options(8, 1, 16))
	postSend := func(sges, inline int, fill func(b *SendBatch)) func() error {
		return func() error {
			b := sendBatch(t, 1, sges, inline)
			fill(b)
			n, err := send.Post(b)
			assert.Zero(t, n)
			return err
		}
	}
	postRecv := func(fill func(b *RecvBatch)) func() error {
		return func() error {
			b := recvBatch(t, 1, 1)
			fill(b)
			_, err := recv.Post(b)
			return err
		}
	}
	postTags := func(fill func(b *TagBatch)) func() error {
		return func() error {
			b, err := NewTagBatch(1, 1)
			require.NoError(t, err)
			fill(b)
			_, err = postTags(&ibv.SRQ{}, ibv.SRQT_TM, "SRQ", nil, b)
			return err
		}
	}
	twoEntries := func(b *SendBatch) { b.Send(1).SGE(1, 1, 1).SGE(1, 1, 1) }
	type call struct {
		errno runtime.Errno
		index int
		do    func() error
	}
	for name, c := range map[string]call{
		"an empty batch": {syscall.EINVAL, -1, postSend(1, 0, func(*SendBatch) {})},
		"a full batch": {syscall.ENOMEM, -1, postSend(1, 0, func(b *SendBatch) {
			b.Send(1).SGE(1, 1, 1)
			b.Send(2).SGE(1, 1, 1)
		})},
		"too many entries":       {syscall.EINVAL, -1, postSend(1, 0, twoEntries)},
		"too many for the queue": {syscall.EINVAL, 0, postSend(2, 0, twoEntries)},
		"inline bytes": {syscall.EINVAL, -1, postSend(1, 1, func(b *SendBatch) {
			b.Send(1).Inline([]byte("12"))
		})},
		"a closed batch":             {syscall.EINVAL, -1, postSend(1, 0, func(b *SendBatch) { b.Close() })},
		"an empty batch of receives": {syscall.EINVAL, -1, postRecv(func(*RecvBatch) {})},
		"a full batch of receives": {syscall.ENOMEM, -1, postRecv(func(b *RecvBatch) {
			b.Recv(1)
			b.Recv(2)
		})},
		"too many entries of a receive": {syscall.EINVAL, -1, postRecv(func(b *RecvBatch) {
			b.Recv(1).SGE(1, 1, 1).SGE(1, 1, 1)
		})},
		"an empty batch of tags": {syscall.EINVAL, -1, postTags(func(*TagBatch) {})},
		"too many entries of tag": {syscall.EINVAL, -1, postTags(func(b *TagBatch) {
			b.AddTag(1, 1, 1, 1).SGE(1, 1, 1).SGE(1, 1, 1)
		})},
		"an empty program": {syscall.EINVAL, -1, func() error { return programs.PostProgram(NewWRProgram(&x.qp)) }},
		"a bad program": {syscall.EINVAL, -1, func() error {
			p := NewWRProgram(&x.qp)
			p.Send(1).SGE(1, 2, 3).UD(8, 1, 1)
			return programs.PostProgram(p)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.do()
			assert.ErrorIs(t, err, c.errno)
			var post *PostError
			require.ErrorAs(t, err, &post)
			assert.Equal(t, c.index, post.Index)
			assert.Equal(t, c.errno, post.Errno)
			assert.NotEmpty(t, post.Reason)
			var verb *VerbError
			require.ErrorAs(t, err, &verb)
			assert.Equal(t, c.errno, verb.Errno)
			assert.Equal(t, post.Reason, verb.Reason)
			assert.Contains(t, err.Error(), verb.Verb+": "+verb.Object+": ")
			assert.Equal(t, name == "a closed batch", errors.Is(err, ErrClosed))
			assert.Equal(t, name == "a closed batch", errors.Is(verb, ErrClosed))
		})
	}
}

// TestWorkPrints: batches and programs print their size and no contents.
func TestWorkPrints(t *testing.T) {
	b, r := writes(sendBatch(t, 4, 1, 0), 1, 2), recvBatch(t, 4, 1)
	tags, err := NewTagBatch(3, 1)
	require.NoError(t, err)
	x := newExtended(t, ibv.QPT_RC)
	p := NewWRProgram(&x.qp)
	p.Send(1)
	for want, v := range map[string]any{
		"batch of 2 sends, with room for 4":            b,
		"batch of 0 receives, with room for 4":         r,
		"batch of 0 operations, with room for 3":       tags,
		"program of QP 0x12 (RC) with 1 work requests": p,
		"program that was never created":               new(WRProgram),
		"program that polls up to 0 completions":       new(PollProgram),
		"batch of 0 sends, with room for 0":            new(SendBatch),
	} {
		assert.Equal(t, want, fmt.Sprint(v))
		assert.Equal(t, want, fmt.Sprintf("%+v", v))
	}
	require.NoError(t, b.Close())
	assert.Equal(t, "batch of sends, closed", fmt.Sprint(b))
}
