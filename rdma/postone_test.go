// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
)

// quickPath is a path with PostOne, a fast path for single requests. PostOne declines some requests.
type quickPath struct {
	Path
	by    *lock.Lock
	posts int  // number of requests accepted by PostOne
	reads bool // read the data of inline requests
	last  byte
}

func (p *quickPath) PostOne(w *ibv.SendWR) bool {
	if w.WRID%5 == 0 || w.NumSGE != 1 {
		return false
	}
	if e := w.SGList.Deref(); p.reads && w.SendFlags&ibv.SEND_INLINE != 0 {
		p.last = *ibv.Ptr[byte](e.Addr).Deref()
	}
	if p.PostSend(nil, w, new(ibv.Ptr[ibv.SendWR])) != 0 {
		return false
	}
	p.posts++
	return true
}

func (p *quickPath) PollExtended(cq *ibv.CQ, wcs []ibv.WC) int32 { return p.Poll(cq, wcs) }

func (p *quickPath) Held(by *lock.Lock)             { p.by = by }
func (p *quickPath) Reset()                         {}
func (p *quickPath) Event()                         {}
func (p *quickPath) Misused(bool) string            { return "" }
func (p *quickPath) Inspect() string                { return "" }
func (p *quickPath) End(destroy func() error) error { return destroy() }

// TestQuick: single requests are posted with PostOne; lists, and requests that PostOne declines, with PostSend. Checked
// queues count both. A closed queue calls neither.
func TestQuick(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(8, 1, 8), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			all := &loopback{}
			p := &quickPath{Path: &sameQP{all, &d.qp}}
			o.Path = p
			q, b := sendQueue(t, d, o), sendBatch(t, 2, 1, 8)
			q.useLock()
			require.Same(t, &q.mu, p.by)
			post := func(id uint64, n int) error {
				_, err := q.Post(writes(b, id, n))
				return err
			}
			require.NoError(t, post(10, 1), "terminates the batch's chain")
			q.Retire([]ibv.WC{success(10)})
			assert.Zero(t, p.posts)
			require.NoError(t, post(1, 1))
			assert.Equal(t, 1, p.posts)
			require.NoError(t, post(5, 1), "no room")
			require.NoError(t, post(6, 2))
			assert.Equal(t, 1, p.posts)
			require.NoError(t, post(20, 1), "terminates the chain again")
			q.Retire([]ibv.WC{success(1), success(5), success(7), success(20)})
			b.Reset()
			b.Write(8, 0, 0).SGE(0, 8, 0)
			_, err := q.Post(b)
			require.NoError(t, err, "not signalled")
			b.Reset()
			b.Write(9, 0, 0).SGE(0, 8, 0)
			_, err = q.Post(b)
			require.NoError(t, err, "not signalled, after another one")
			require.NoError(t, post(11, 1))
			if name == "checked" {
				assert.Equal(t, 3, p.posts, "the first unsignaled request goes through PostSend")
				assert.Equal(t, 5, q.Free())
				q.Retire([]ibv.WC{success(11)})
				assert.Equal(t, 8, q.Free())
			}
			posts := p.posts
			q.refuse(errBatchClosed)
			assert.ErrorIs(t, post(11, 1), errBatchClosed)
			q.refuse(nil)
			assert.Equal(t, posts, p.posts)
			require.NoError(t, post(12, 1), "terminates the chain again")
			require.NoError(t, post(13, 1))
			assert.Greater(t, p.posts, posts)
		})
	}
}

type sameQP struct {
	Path
	qp *ibv.QP
}

func (p *sameQP) PostSend(_ *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return p.Path.PostSend(p.qp, list, bad)
}

// TestQuickPanics: a post panics if the data of an inline request is unmapped. The queue accepts later posts.
func TestQuickPanics(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(8, 1, 8), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			p := &quickPath{Path: &sameQP{&loopback{}, &d.qp}, reads: true}
			o.Path = p
			q, b := sendQueue(t, d, o), sendBatch(t, 1, 1, 8)
			q.useLock()
			for range 200 { // so that the goroutine owns the lock
				b.Reset()
				b.Write(1, 0, 0).Inline([]byte{1}).Signaled()
				_, err := q.Post(b)
				require.NoError(t, err)
				q.Retire([]ibv.WC{success(1)})
			}
			require.Greater(t, p.posts, 100)
			b.Reset()
			b.Write(1, 0, 0).SGE(8, 1, 0).Flags(ibv.SEND_INLINE).Signaled()
			assert.Panics(t, func() { q.Post(b) })
			if name == "checked" {
				assert.Equal(t, 8, q.Free())
			}
			posted := make(chan error)
			go func() {
				_, err := q.Post(writes(b, 1, 1))
				posted <- err
			}()
			select {
			case err := <-posted:
				assert.NoError(t, err)
			case <-time.After(time.Minute):
				t.Fatal("a post after a panic hangs")
			}
		})
	}
}
