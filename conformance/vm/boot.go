// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// boot runs QEMU until it exits.
func (g *Guest) boot(ctx context.Context, initrd string) (*Outcome, error) {
	within, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(within, "qemu-system-x86_64", g.command(initrd)...)
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	cmd.WaitDelay = 2 * time.Second
	console, consoleEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer console.Close()
	line, lineEnd, err := os.Pipe()
	if err != nil {
		consoleEnd.Close()
		return nil, err
	}
	defer line.Close()
	cmd.ExtraFiles = []*os.File{consoleEnd, lineEnd}
	watch := &watch{guest: g, began: time.Now(), stop: stop, files: map[string][]byte{}}
	watch.bound(orDefault(g.bootTime, bootTime))
	wait, err := start(cmd)
	consoleEnd.Close()
	lineEnd.Close()
	if err != nil {
		return nil, err
	}
	var readers sync.WaitGroup
	readers.Go(func() { watch.readConsole(console) })
	readers.Go(func() { watch.readLine(line) })
	ended := wait()
	readers.Wait()
	watch.mu.Lock()
	defer watch.mu.Unlock()
	watch.timer.Stop()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if watch.saw.fastClock {
		return nil, errClock
	}
	watch.saw.emulator = strings.TrimSpace(complaints.String())
	if ended != nil && watch.saw.console == "" && !watch.saw.timedOut {
		return nil, fmt.Errorf("qemu-system-x86_64: %w\n%s", ended, watch.saw.emulator)
	}
	o := classify(watch.saw)
	if watch.saw.brokeEarly(o.Kind) && g.mayBootAgain {
		return nil, fmt.Errorf("%w:\n%s", errBroke, o.Detail)
	}
	o.Boot, o.Elapsed, o.Files = watch.boot, time.Since(watch.began), watch.files
	return o, nil
}

// watch collects the messages and the console output of a guest.
type watch struct {
	guest   *Guest
	began   time.Time
	started time.Time // start of the running program
	boot    time.Duration
	files   map[string][]byte
	stop    context.CancelFunc

	bootAt     time.Time // when init reported that it runs
	bootUptime float64   // kernel uptime at bootAt, in seconds

	mu    sync.Mutex
	saw   observed
	timer *time.Timer // ends the guest
}

// bound restarts the guest's timer with a new limit.
func (w *watch) bound(limit time.Duration) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.saw.limit = limit
	w.timer = time.AfterFunc(limit, func() {
		w.mu.Lock()
		w.saw.timedOut = !w.saw.done && w.saw.failed == ""
		w.mu.Unlock()
		w.stop()
	})
}

// errClock means that the guest's clock is so fast that everything in the guest times out. The guest's kernel measures
// the tick rate at boot, and on a busy host the measurement is wrong: 270 s in 84 s have been observed.
var errClock = errors.New("the guest's clock is too fast")

// errBroke means that the kernel crashed, stopped or hung before it ran a program. Emulated processors do not always
// survive cross-modifying code (an int3 in sched_clock_cpu has been observed on Linux 7), and on a busy host some wait
// for an interrupt that never arrives.
var errBroke = errors.New("the kernel failed before it ran a program")

// clockIsFast compares elapsed time in the guest and on the host. A small difference may also mean that the guest was
// not scheduled.
func clockIsFast(guest float64, own time.Duration) bool {
	return guest > 0.5 && guest > 2*own.Seconds()
}

// endTime is how long a guest may take to power off after its last message.
const endTime = 5 * time.Second

const (
	keptConsole = 1 << 20
	keptOutput  = 64 << 10
)

// keep appends more to s and returns at most the last n bytes.
func keep(s, more string, n int) string {
	s += more
	return s[max(0, len(s)-n):]
}

func (w *watch) readConsole(r io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			w.mu.Lock()
			w.saw.console = keep(w.saw.console, string(buf[:n]), keptConsole)
			w.mu.Unlock()
			if w.guest.Console != nil {
				w.guest.Console.Write(buf[:n])
			}
		}
		if err != nil {
			return
		}
	}
}

func (w *watch) readLine(r io.Reader) {
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		text, err := lines.ReadBytes('\n')
		// the serial port may carry other output until init has configured it
		if start := bytes.IndexByte(text, '{'); start >= 0 {
			var m wire.Message
			if json.Unmarshal(text[start:], &m) == nil {
				w.take(m)
			}
		}
		if err != nil {
			return
		}
	}
}

func (w *watch) take(m wire.Message) {
	log := w.guest.Log
	w.mu.Lock()
	defer w.mu.Unlock()
	switch m.Kind {
	case wire.Boot:
		log.printf("Linux %s is up", m.Text)
		w.saw.booted = true
		w.bootAt, w.bootUptime = time.Now(), m.Uptime
		w.bound(bootTime) // for init
	case wire.Ready:
		if w.guest.mayBootAgain && !w.guest.Counted && clockIsFast(m.Uptime-w.bootUptime, time.Since(w.bootAt)) {
			w.saw.fastClock = true
			w.stop()
			return
		}
		w.saw.ready, w.boot = true, time.Since(w.began)
		w.bound(w.guest.limit())
		log.printf("ready: %s", m.Text)
	case wire.Start:
		w.saw.running, w.started = m.Program, time.Now()
		w.saw.before, w.saw.output = "", ""
		log.printf("running %s", m.Program)
	case wire.Output:
		w.saw.output = keep(w.saw.output, string(m.Data), keptOutput)
		if w.guest.Output != nil {
			w.guest.Output.Write(m.Data)
		}
	case wire.Late:
		w.saw.before, w.saw.output = w.saw.output, ""
	case wire.Exit:
		r := Result{Program: m.Program, Status: m.Status, Signal: m.Signal, TimedOut: m.TimedOut, Text: m.Text,
			Elapsed: time.Since(w.started)}
		if m.TimedOut {
			r.Last, r.Where = lastLines(w.saw.before, 10), firstLines(w.saw.output, 60)
		}
		w.saw.results = append(w.saw.results, r)
		w.saw.running = ""
		log.printf("%s", r)
		if w.guest.failed != nil && (r.TimedOut || r.Status != 0) {
			w.guest.failed()
		}
	case wire.File:
		w.files[m.Text] = m.Data
	case wire.Failed:
		w.saw.failed = m.Text
		if w.guest.failed != nil {
			w.guest.failed()
		}
		w.bound(endTime)
	case wire.Done:
		w.saw.done = true
		w.bound(endTime)
	}
}

func (r Result) String() string {
	s := r.Program + ": "
	switch {
	case r.TimedOut:
		s += "did not end in time"
	case r.Signal != "":
		s += "killed: " + r.Signal
	case r.Text != "":
		s += r.Text
	case r.Status != 0:
		s += "exit status " + strconv.Itoa(r.Status)
	default:
		s += "passed"
	}
	return fmt.Sprintf("%s after %.1f s", s, r.Elapsed.Seconds())
}
