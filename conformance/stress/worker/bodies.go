// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package main

import (
	"log"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
	"github.com/goverbs/goverbs/runtime/program"
)

var allBodies = map[string]func(*run){
	"queue":           sharedQueue,
	"blocking":        blocking,
	"programs":        func(r *run) { regions(r, runTogether) },
	"separate":        func(r *run) { regions(r, runApart) },
	"sends":           shareSends(false),
	"sends-unchecked": shareSends(true),
	"sends-programs":  sharePrograms,
	"spin-system":     spinSystem,
	"spin-go":         spinGo,
}

// entry is one post: the number of its poster, its sequence number, and bytes derived from both.
type entry [8]uint64

func makeEntry(poster, n uint64) (e entry) {
	e[0], e[1] = poster, n
	for i := uint64(2); i < 8; i++ {
		e[i] = (poster<<32 ^ n) * (i*0x9e3779b97f4a7c15 | 1)
	}
	return e
}

// memory allocates count entries outside the Go heap.
func memory(count int) (uintptr, []entry) {
	m, err := offheap.Map(count*64, offheap.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return m.Address(), unsafe.Slice((*entry)(unsafe.Pointer(unsafe.SliceData(m.Bytes()))), count)
}

// sharedQueue posts to one queue from two goroutines and polls it from two others. Every post is seen exactly once and
// intact, and each poller sees the posts of one poster in order.
func sharedQueue(r *run) {
	q, post, poll, churn := r.call("queue_new"), r.c("queue_post"), r.c("queue_poll"), r.c("churn")
	var posting, polling sync.WaitGroup
	var posted [posters]uint64
	var ended atomic.Bool
	for poster := range uint64(posters) {
		posting.Go(func() {
			at, e := memory(2)                              // the second one is for bad_wr
			for n := uint64(0); !r.stop.Load() || n == 0; { // a starved goroutine continues until it made progress
				e[0] = makeEntry(poster, n)
				switch result := runtime.System.Call3(post, q, at, at+64); result {
				case 0:
					n++
					if posted[poster] = n; n%200 == 0 {
						goruntime.Gosched() // with one P the other poster would find the queue full every time
					}
				case 12: // ENOMEM: full
					if e[1][0] != uint64(at) {
						log.Fatalf("bad_wr is %#x, want %#x", e[1][0], at)
					}
					goruntime.Gosched()
				default:
					log.Fatalf("post: %d", result)
				}
			}
		})
	}
	var mu sync.Mutex
	seen := [posters]map[uint64]bool{{}, {}}
	var total, low [posters]uint64 // low: all before it were seen and removed from the map
	for range 2 {
		polling.Go(func() {
			at, e := memory(16)
			var last [posters]uint64
			for {
				over := ended.Load()
				n := runtime.System.Call3(poll, q, 16, at)
				runtime.System.Call3(churn, 4000, 0, 0)
				mu.Lock()
				for _, got := range e[:n] {
					id := got[0]
					if id >= posters || got != makeEntry(id, got[1]) {
						log.Fatalf("a post arrived with wrong bytes: %x", got)
					}
					if got[1] < last[id] || seen[id][got[1]] || got[1] < low[id] {
						log.Fatalf("post %d of %d was seen twice or out of order", got[1], id)
					}
					last[id] = got[1] + 1
					total[id]++
					seen[id][got[1]] = true
					for seen[id][low[id]] {
						delete(seen[id], low[id])
						low[id]++
					}
				}
				mu.Unlock()
				if n == 0 {
					if over {
						return
					}
					goruntime.Gosched()
				}
			}
		})
	}
	posting.Wait()
	ended.Store(true)
	polling.Wait()
	if total != posted {
		log.Fatalf("posted %v, seen %v", posted, total)
	}
	r.reportf("posts=%v", total)
}

// blocking calls C with memory on the goroutine's stack, which moves when the stack grows.
func blocking(r *run) {
	q := r.call("queue_new")
	post := &runtime.Function{Library: r.clib, Name: "queue_post"}
	poll := &runtime.Function{Library: r.clib, Name: "queue_poll"}
	var wg sync.WaitGroup
	for poster := range uint64(2) {
		wg.Go(func() {
			for n := uint64(0); !r.stop.Load(); n++ {
				e, got, bad := makeEntry(poster, n), entry{}, uintptr(0)
				if err := post.Exported().Errno(q, uintptr(unsafe.Pointer(&e)),
					uintptr(unsafe.Pointer(&bad))); err != nil {
					log.Fatal(err)
				}
				grow(int(n % 50))
				if k, err := poll.Exported().MinusOne(q, 1, uintptr(unsafe.Pointer(&got))); err != nil || k != 1 ||
					got != makeEntry(got[0], got[1]) {
					log.Fatalf("poll: %d, %v, %x", k, err, got)
				}
			}
		})
	}
	wg.Wait()
}

// region is the work of a goroutine while it holds a lock in C.
type region struct {
	start, set, complete, q, who uintptr
	program                      *program.Program
}

func runTogether(g *region) { g.program.Run(runtime.System) }

// runApart makes separate calls, which is incorrect.
func runApart(g *region) {
	runtime.System.Call3(g.start, g.q, g.who, 0)
	runtime.System.Call3(g.set, g.q, g.who, 0)
	runtime.System.Call3(g.complete, g.q, g.who, 0)
}

// regions has two goroutines take a C lock in turn.
func regions(r *run, do func(*region)) {
	q := r.call("queue_new")
	var wg sync.WaitGroup
	var count [2]uint64
	for poster := range uintptr(2) {
		g := &region{start: r.c("region_start"), set: r.c("region_set"), complete: r.c("region_complete"), q: q,
			who: poster + 1, program: &program.Program{}}
		g.program.Call(g.start, uint64(q), uint64(g.who))
		for range 8 {
			g.program.Call(g.set, uint64(q), uint64(g.who))
		}
		g.program.Call(g.complete, uint64(q), uint64(g.who))
		wg.Go(func() {
			for !r.stop.Load() || count[poster] == 0 { // a starved goroutine continues until it made progress
				do(g)
				if count[poster]++; poster == 0 && count[poster]%64 == 0 {
					// with one P, yield to stop the world often; the other goroutine runs until it is preempted
					goruntime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	if done, broken := r.call("queue_regions", q), r.call("queue_broken", q); uint64(done) != count[0]+count[1] ||
		broken != 0 || count[0] == 0 || count[1] == 0 {
		log.Fatalf("%v regions, C counts %d, of which %d overlapped", count, done, broken)
	}
	r.reportf("regions=%v", count)
}

// spinSystem polls an empty queue in a tight loop.
func spinSystem(r *run) {
	q, fn := r.call("queue_new"), r.c("queue_poll")
	e, _ := memory(16)
	for !r.stop.Load() {
		for range 1 << 22 { // only the call: about 50 ms
			runtime.System.Call3(fn, q, 16, e)
		}
	}
}

var sink atomic.Uint64

// spinGo is the baseline: pure Go, which without preemption by signals can only be stopped between loops.
func spinGo(r *run) {
	for !r.stop.Load() {
		for i := range uint64(1 << 22) { // about 20 ms
			sink.Store(i)
		}
		goruntime.Gosched()
	}
}
