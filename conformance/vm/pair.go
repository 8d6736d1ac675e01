// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// RunPair boots two guests with a network between them, each with its own programs, and returns both outcomes. If a
// program fails in one guest, that guest ends; the other, which may be waiting for it, is killed after pairGrace unless
// it fails too. If one needs another boot, both are booted again. Programs that passed before are skipped if both guests run the same
// programs.
func RunPair(ctx context.Context, guests [2]*Guest) (outcomes [2]*Outcome, err error) {
	dir, err := os.MkdirTemp("", "goverbs-pair-")
	if err != nil {
		return outcomes, err
	}
	defer os.RemoveAll(dir)
	initProgram, err := buildInit(ctx, dir)
	if err != nil {
		return outcomes, err
	}
	for host, g := range guests {
		own := *g
		own.Host, own.Socket = host, filepath.Join(dir, "link")
		guests[host] = &own
	}
	rest, notes, err := notPassed(initProgram, guests[:]...)
	if err != nil {
		return outcomes, err
	}
	if len(rest) == 0 {
		return [2]*Outcome{{Kind: Passed, Before: true}, {Kind: Passed, Before: true}}, nil
	}
	var initrds [2]string
	for host, g := range guests {
		if g.Passed != "" {
			g.Programs = rest
		}
		if initrds[host], err = g.prepare(dir, initProgram); err != nil {
			return outcomes, err
		}
	}
	for again := bootsAgain; ; again-- {
		outcomes, err = runPair(ctx, guests, initrds, again > 0)
		if !isBadBoot(err) {
			notes.write(outcomes[:]...)
			return outcomes, err
		}
		guests[0].Log.printf("%v: booting both again", err)
	}
}

func runPair(ctx context.Context, guests [2]*Guest, initrds [2]string, mayBootAgain bool) (outcomes [2]*Outcome,
	err error) {
	os.Remove(guests[0].Socket)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var errs [2]error
	var running sync.WaitGroup
	var failed [2]atomic.Bool
	var contexts [2]context.Context
	var stop [2]context.CancelFunc
	for host := range guests {
		contexts[host], stop[host] = context.WithCancel(ctx)
	}
	for host, g := range guests {
		g.mayBootAgain = mayBootAgain
		fail := func() {
			if failed[host].Swap(true) {
				return
			}
			time.AfterFunc(pairGrace, func() {
				if !failed[1-host].Load() {
					stop[1-host]()
				}
			})
		}
		g.failed = fail
		if host == 1 {
			if err := appear(ctx, g.Socket); err != nil {
				cancel()
				running.Wait()
				return outcomes, errors.Join(err, errs[0])
			}
		}
		running.Go(func() {
			outcomes[host], errs[host] = g.boot(contexts[host], initrds[host])
			switch {
			case isBadBoot(errs[host]):
				cancel()
			case errs[host] != nil || outcomes[host].Kind != Passed:
				fail()
			}
		})
	}
	running.Wait()
	for host := range errs { // this guest ended because of the other's failure
		other := outcomes[1-host]
		if errors.Is(errs[host], context.Canceled) && other != nil && other.Kind != Passed {
			outcomes[host] = &Outcome{Kind: Broken,
				Detail: fmt.Sprintf("ended after the other guest: %s", other.Kind)}
			errs[host] = nil
		}
	}
	return outcomes, errors.Join(errs[:]...)
}

// pairGrace is how long a guest continues after a program has failed in the other. It lets a failure of both sides appear
// in the output of both.
const pairGrace = time.Second

// appear waits for the socket that the first guest creates.
func appear(ctx context.Context, socket string) error {
	for deadline := time.Now().Add(bootTime); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("the first of two guests made no socket for the network")
		}
	}
}
