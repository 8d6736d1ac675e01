// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

// mishap is a failure of a request at a step of the protocol.
type mishap struct {
	step string // a method, or the last element of a control path
	what int
	end  context.CancelFunc // ends the client

	done, dead atomic.Bool
}

// Mishaps.
const (
	lostRequest = iota
	lostReply
	diesBefore // the client sends nothing from this step on, not even a cancel request
	diesAfter
	mishaps
)

type mishapKey struct{}

var errLostMessage = errors.New("connection reset")

// injectMishaps returns a RoundTripper that causes the mishaps in the contexts of requests.
func injectMishaps(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		m, _ := r.Context().Value(mishapKey{}).(*mishap)
		if m == nil {
			return base.RoundTrip(r)
		}
		if m.dead.Load() {
			return nil, errLostMessage
		}
		step := r.Method
		if step == http.MethodPost {
			step = path.Base(r.URL.Path)
		}
		if step != m.step || m.done.Swap(true) {
			return base.RoundTrip(r)
		}
		die := func() {
			m.dead.Store(true)
			m.end()
		}
		switch m.what {
		case lostRequest:
			return nil, errLostMessage
		case diesBefore:
			die()
			return nil, errLostMessage
		}
		response, err := base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		response.Body.Close()
		if m.what == diesAfter {
			die()
		}
		return nil, errLostMessage
	})
}

// TestChaos transfers many small objects while packets, control requests and replies are lost, clients die at each
// step, and the server is replaced. Every object must be correct, and no session, memory region or queue pair may
// remain.
func TestChaos(t *testing.T) {
	t.Run("hipobj-rc-v2", func(t *testing.T) { chaos(t, Options{}, []string{"HEAD", "prepare", "ready", "cancel"}) })
	t.Run("direct", func(t *testing.T) { chaos(t, Options{Direct: true}, []string{"HEAD", "GET", "PUT"}) })
	t.Run("dynamic", func(t *testing.T) { chaos(t, Options{Dynamic: true}, []string{"HEAD", "GET", "PUT"}) })
}

func chaos(t *testing.T, o Options, steps []string) {
	objects := 800
	if everything() {
		objects = 100000
	}
	const workers = 16
	options := HandlerOptions{Direct: o.Direct, Dynamic: o.Dynamic, SessionLifetime: 100 * time.Millisecond,
		TransferTimeout: 300 * time.Millisecond}
	o.Threshold, o.TransferTimeout, o.RetryAfter = 1, 300*time.Millisecond, time.Microsecond
	p := newPair(t, options, o, injectMishaps)
	require.NoError(t, p.fabric.SetFaults(soft.Faults{Seed: 1, Drop: 0.001, Duplicate: 0.01, Delay: 0.01,
		Late: time.Millisecond}))
	var done, killed, wrong atomic.Int64
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			// do sends a request and reports whether its client died.
			do := func(method, key string, data []byte) (got []byte, died bool, err error) {
				ctx, end := context.WithCancel(t.Context())
				defer end()
				m := &mishap{end: end}
				if random.IntN(4) == 0 {
					m.step, m.what = steps[random.IntN(len(steps))], random.IntN(mishaps)
					ctx = context.WithValue(ctx, mishapKey{}, m)
				}
				got, err = p.do(ctx, method, key, data)
				return got, m.dead.Load(), err
			}
			key := fmt.Sprint(worker)
			for i := 0; i < objects/workers && !t.Failed(); i++ {
				data := bytesOf(1+random.IntN(8192), uint64(i))
				if _, died, err := do(http.MethodPut, key, data); died {
					killed.Add(1)
					key = fmt.Sprintf("%d-%d", worker, i) // the server may still store the object under the old key
					if _, err := p.do(t.Context(), http.MethodPut, key, data); err != nil {
						t.Errorf("put %s: %v", key, err)
						return
					}
				} else if err != nil {
					t.Errorf("put %s: %v", key, err)
					return
				}
				got, died, err := do(http.MethodGet, key, nil)
				switch {
				case died:
					killed.Add(1)
				case err != nil:
					t.Errorf("get %s: %v", key, err)
				case !bytes.Equal(got, data):
					wrong.Add(1)
				}
				done.Add(1)
			}
		})
	}
	result := make(chan struct{})
	go func() {
		all.Wait()
		close(result)
	}()
	replaced := 0
	for running := true; running; {
		select {
		case <-result:
			running = false
		case <-time.After(200 * time.Millisecond):
			replaced++
			options.Device = p.handler.options.Device
			next, err := NewHandler(p.store, options)
			require.NoError(t, err)
			old := p.serving.Swap(next)
			assert.NoError(t, old.Close())
			p.handler = next
		}
	}
	assert.Zero(t, wrong.Load(), "wrong objects")
	assert.EqualValues(t, objects/workers*workers, done.Load())
	assert.Eventually(t, func() bool { return p.handler.Sessions() == 0 }, 5*time.Second, 5*time.Millisecond)
	p.transport.running.Wait()
	p.transport.closeLanes()
	p.transport.lanes = map[string][]*clientLane{}
	assert.NoError(t, p.handler.Close())
	left := p.fabric.Resources()
	assert.Zero(t, left["qp"], "%v", left)
	assert.Zero(t, left["mr"], "%v", left)
	stats := p.transport.Stats()
	assert.Greater(t, stats.Puts, uint64(objects/2))
	assert.Greater(t, stats.Gets, uint64(objects/2))
	t.Logf("%+v; %d clients died, %d servers replaced", stats, killed.Load(), replaced)
}
