// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// endings are signals with which people and systems end programs.
var endings = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// interruption is the number of the signal that ended a subcommand before it was through, or 0.
type interruption struct{ atomic.Int32 }

// exitInterrupted is what shells call the end by a signal, 130 for an interrupt: nothing that goverbs started to do was
// done to its end. Subcommands that serve until they are interrupted end with 0.
func (i *interruption) exitInterrupted() int { return 128 + int(i.Load()) }

// untilInterrupted is a context that ends when the user or the system ends the program, so that nothing half done is
// left. The second such signal ends it at once. nohup has a program ignore SIGHUP, which is left so.
func (o output) untilInterrupted() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range endings {
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
