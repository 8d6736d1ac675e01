// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"io"
	"log"
	goruntime "runtime"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

var allStorms = map[string]func(*run){
	"stop":    stopTheWorld,
	"collect": collect,
	"urg":     signals(unix.SIGURG),
	"prof":    signals(unix.SIGPROF),
	"profile": profile,
	"trace":   tracer,
}

// stopTheWorld stops the world thousands of times a second and reports the duration, with and without the time in which
// threads of this process were runnable without a CPU on an overloaded machine. own-p99 excludes the waits of all
// threads, which may depend on each other; own-max excludes only the longest wait, so it is larger if several waited
// concurrently.
func stopTheWorld(r *run) {
	var m goruntime.MemStats
	var elapsed, cpuTime []time.Duration
	var most time.Duration
	var waits queueing
	alone := goruntime.GOMAXPROCS(0) == 1 // let another goroutine run first
	for !r.stop.Load() {
		if len(elapsed)%64 == 0 {
			waits.find()
		}
		waits.begin()
		before := time.Now()
		goruntime.ReadMemStats(&m)
		t := time.Since(before)
		elapsed = append(elapsed, t)
		one := t
		if t > time.Millisecond {
			all, longest := waits.since()
			t, one = max(0, t-all), max(0, t-longest)
		}
		cpuTime, most = append(cpuTime, t), max(most, one)
		if len(elapsed)%64 == 0 {
			debug.SetGCPercent(100)
			debug.SetGCPercent(100)
		}
		if alone && len(elapsed)%256 == 0 {
			goruntime.Gosched()
		}
	}
	slices.Sort(elapsed)
	slices.Sort(cpuTime)
	last := len(elapsed) - 1
	r.reportf("stops=%d stop-p50=%v stop-p99=%v stop-max=%v own-p99=%v own-max=%v", len(elapsed), elapsed[last/2],
		elapsed[last*99/100], elapsed[last], cpuTime[last*99/100], most)
}

// collect grows and shrinks stacks, and produces and collects garbage.
func collect(r *run) {
	n := 0
	for ; !r.stop.Load(); n++ {
		done := make(chan int)
		go func() { done <- grow(200) }()
		<-done
		goruntime.GC()
	}
	r.reportf("collections=%d", n)
}

//go:noinline
func grow(n int) int {
	var here [64]int
	here[n%64] = len(make([]byte, 100+n))
	if n == 0 {
		return here[0]
	}
	return grow(n-1) + here[n%64]
}

// signals repeatedly sends a signal to every thread of the process.
func signals(signal unix.Signal) func(*run) {
	return func(r *run) {
		n := 0
		for pid := unix.Getpid(); !r.stop.Load(); n++ {
			for tid := range threads() {
				unix.Tgkill(pid, tid, signal)
			}
			time.Sleep(50 * time.Microsecond)
		}
		r.reportf("%v=%d", signal, n)
	}
}

// profile profiles at the maximum rate, in addition to the signals of other storms.
func profile(r *run) {
	goruntime.SetCPUProfileRate(5000)
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		log.Fatal(err)
	}
	defer pprof.StopCPUProfile()
	for !r.stop.Load() {
		time.Sleep(time.Millisecond)
	}
}

// tracer repeatedly starts and stops the execution tracer.
func tracer(r *run) {
	for !r.stop.Load() {
		if err := trace.Start(io.Discard); err != nil {
			log.Fatal(err)
		}
		ctx, task := trace.NewTask(context.Background(), "stress")
		for range 20 {
			trace.Log(ctx, "stress", "tick")
			time.Sleep(time.Millisecond)
		}
		task.End()
		trace.Stop()
	}
}
