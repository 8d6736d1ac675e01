// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

// Command worker runs the stress tests in separate processes: bodies that call C, under storms of events of the Go
// runtime and the kernel. On success it exits with 0 and prints its measurements.
package main

import (
	"flag"
	"fmt"
	"log"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/runtime"
)

var (
	library  = flag.String("library", "", "shared library built from testdata")
	bodies   = flag.String("bodies", "", "comma-separated list of bodies to run concurrently")
	storms   = flag.String("storms", "", "comma-separated list of storms")
	duration = flag.Duration("for", time.Second, "duration of the run")
)

// run is one run of the worker. Bodies end when stop is set.
type run struct {
	stop    atomic.Bool
	clib    *runtime.Library
	mu      sync.Mutex
	reports []string
	kept    []any // memory referenced by C
}

func (r *run) keep(memory any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, memory)
}

func (r *run) reportf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, fmt.Sprintf(format, args...))
}

// c returns the address of a C function.
func (r *run) c(name string) uintptr {
	address, err := r.clib.Symbol(name)
	if err != nil || address == 0 {
		log.Fatalf("%s: address %#x, %v", name, address, err)
	}
	return address
}

// call calls a C function outside the tests.
func (r *run) call(name string, args ...uintptr) uintptr {
	result, err := (&runtime.Function{Library: r.clib, Name: name}).Exported().Value(args...)
	if err != nil {
		log.Fatal(err)
	}
	return uintptr(result)
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	r := &run{clib: &runtime.Library{Name: "queue", SOName: *library}}
	var storm, work sync.WaitGroup
	for _, name := range split(*storms) {
		start, ok := allStorms[name]
		if !ok {
			log.Fatalf("unknown storm %q; use one of %v", name, slices.Sorted(maps.Keys(allStorms)))
		}
		storm.Go(func() { start(r) })
	}
	for _, name := range split(*bodies) {
		body, ok := allBodies[name]
		if !ok {
			log.Fatalf("unknown body %q; use one of %v", name, slices.Sorted(maps.Keys(allBodies)))
		}
		work.Go(func() { body(r) })
	}
	time.AfterFunc(*duration, func() { r.stop.Store(true) })
	work.Wait()
	storm.Wait()
	fmt.Printf("ok: GOMAXPROCS=%d %s\n", goruntime.GOMAXPROCS(0), strings.Join(r.reports, "; "))
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' })
}
