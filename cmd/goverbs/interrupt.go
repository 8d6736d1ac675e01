// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// interruptSignals are the signals that interrupt goverbs.
var interruptSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// interruption is the number of the signal that interrupted a subcommand, or 0.
type interruption struct{ atomic.Int32 }

// exitInterrupted returns 128 plus the signal, as shells do. Subcommands that serve until interrupted exit with 0
// instead.
func (i *interruption) exitInterrupted() int { return 128 + int(i.Load()) }

// untilInterrupted returns a context that ends at the first signal, so that the subcommand can clean up. A second
// signal ends the process at once. If SIGHUP is ignored (nohup), it stays ignored.
func (o output) untilInterrupted() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range interruptSignals {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			if number, ok := s.(syscall.Signal); ok && o.interrupted != nil {
				o.interrupted.Store(int32(number))
			}
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}
