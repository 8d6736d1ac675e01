// SPDX-License-Identifier: BSD-2-Clause

// Package guest runs suites on Soft-RoCE in guests. It uses the programs installed on the host, as for the drop-in
// libraries.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/conformance/suites"
	"github.com/goverbs/goverbs/conformance/vm"
)

// RootFile is the path in the guest of a tar file with the programs' root file system.
const RootFile = "/suites.tar"

// Slower is the factor for timeouts in a guest, whose processors are emulated.
const Slower = 3

// Event is a message of the guest: a case begins, a case has ended, or all cases have ended.
type Event struct {
	Begins string         `json:",omitempty"`
	Result *suites.Result `json:",omitempty"`
	Done   bool           `json:",omitempty"`
}

const mark = "suites-event "

// Write writes the event as a line.
func (e Event) Write(to io.Writer) {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // cannot fail, since an Event has only strings
	}
	fmt.Fprintf(to, "\n%s%s\n", mark, text)
}

// Run runs the cases of a suite whose names match a regular expression on a kernel. If the guest breaks, the running
// case fails, and the remaining ones run in another guest.
func Run(ctx context.Context, kernel string, s *suites.Suite, only string, log func(format string, args ...any)) (
	[]suites.Result, error) {
	image, err := vm.Prepare(ctx, kernel, vm.CacheDir(), log)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "goverbs-suites-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	root, err := os.Create(filepath.Join(dir, "root.tar"))
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, p := range s.Packages {
		packages = append(packages, p.Name)
	}
	if err := writeRoot(ctx, root, packages); err != nil {
		return nil, err
	}
	if err := root.Close(); err != nil {
		return nil, err
	}
	programs, err := vm.BuildHelpers(ctx, dir, []string{"./conformance/suites/guest/inside"}, nil, log)
	if err != nil {
		return nil, err
	}
	var got []suites.Result
	var without []string
	for {
		events := &events{log: log}
		inside := vm.Program{Name: s.Name, Host: programs[0].Host, Args: append([]string{s.Name, only}, without...),
			Timeout: 40 * time.Minute}
		g := &vm.Guest{Image: image, Memory: 2048, Output: events, Log: log, Programs: []vm.Program{inside},
			Files: []vm.File{{Name: RootFile, Host: root.Name()}}}
		outcome, err := g.Run(ctx)
		if err != nil {
			return nil, err
		}
		got = append(got, events.all...)
		if events.done {
			return got, nil
		}
		if events.running == "" || outcome.Kind == vm.Exited {
			return got, fmt.Errorf("kernel %s: %s", kernel, outcome)
		}
		log("%s: %s: the guest ended: %s", s.Name, events.running, outcome)
		got = append(got, suites.Result{Case: events.running, Ends: suites.Fail, Reason: string(outcome.Kind)})
		without = append(without, events.started...)
	}
}

// events parses the output of the program inside.
type events struct {
	log func(format string, args ...any)

	mu      sync.Mutex // guards the following fields
	line    []byte
	all     []suites.Result
	running string   // the running case, or ""
	started []string // cases that have begun
	done    bool
}

func (e *events) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.line = append(e.line, b...)
	for {
		line, rest, ok := bytes.Cut(e.line, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		e.line = rest
		e.read(strings.TrimRight(string(line), "\r"))
	}
}

func (e *events) read(line string) {
	text, ok := strings.CutPrefix(line, mark)
	if !ok {
		if line != "" {
			e.log("%s", line)
		}
		return
	}
	var event Event
	if err := json.Unmarshal([]byte(text), &event); err != nil {
		e.log("%s: %v", line, err)
		return
	}
	if event.Begins != "" {
		e.running = event.Begins
		e.started = append(e.started, event.Begins)
	}
	e.done = e.done || event.Done
	if event.Result != nil {
		e.all = append(e.all, *event.Result)
		if event.Result.Case == e.running {
			e.running = ""
		}
	}
}
