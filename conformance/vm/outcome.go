// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Kind is how a guest ended.
type Kind string

const (
	Passed      Kind = "passed"
	Exited      Kind = "exited"        // a program ended with another status than 0
	Oops        Kind = "oops"          // the kernel found a fault in itself
	Panic       Kind = "panic"         // the kernel gave up
	OutOfMemory Kind = "out of memory" // the guest's memory did not suffice
	Hang        Kind = "hang"          // a program or the guest did not end in time
	Broken      Kind = "broken"        // the guest did not come as far as the programs, or stopped without a reason
)

// Outcome tells how a guest ended.
type Outcome struct {
	Kind    Kind
	Before  bool          // it passed before, and was not run again
	Status  int           // the first exit status of a program that is not 0; 128 + signal when it was killed
	Program string        // which one, or the one that ran when the guest ended
	Detail  string        // the kernel's words, or the last lines
	Boot    time.Duration // until the programs could start
	Elapsed time.Duration
	Files   map[string][]byte // what programs left in the directory GOVERBS_OUT
	Results []Result
	// Warnings are lines in which the kernel says that something is not right with it, though it went on.
	Warnings []string
}

// Result is how one program ended.
type Result struct {
	Program  string
	Status   int
	Signal   string
	TimedOut bool
	Elapsed  time.Duration
	Text     string // why it could not be started
	Last     string // the last lines that it wrote before its time was up
	Where    string // what it wrote when it was asked where it is: Go's programs, their goroutines
}

// Exit statuses of vmtest for what is no program's status.
const (
	StatusHang        = 124
	StatusBroken      = 125
	StatusKernel      = 126
	StatusOutOfMemory = 137
)

// ExitStatus is 0 when all passed, the program's own status when one failed, or one of the statuses above.
func (o *Outcome) ExitStatus() int {
	switch o.Kind {
	case Passed:
		return 0
	case Exited:
		return o.Status
	case Hang:
		return StatusHang
	case Oops, Panic:
		return StatusKernel
	case OutOfMemory:
		return StatusOutOfMemory
	}
	return StatusBroken
}

func (o *Outcome) String() string {
	s := string(o.Kind)
	if o.Before {
		return s + " before, and nothing of it has changed"
	}
	if o.Kind == Exited {
		s = fmt.Sprintf("exit status %d", o.Status)
	}
	if o.Program != "" && o.Kind != Passed {
		s += " (" + o.Program + ")"
	}
	s += fmt.Sprintf(" after %.1f s", o.Elapsed.Seconds())
	if o.Boot > 0 {
		s += fmt.Sprintf(", %.1f s of them to boot", o.Boot.Seconds())
	}
	for _, w := range o.Warnings {
		s += "\n\tthe kernel warns: " + w
	}
	if o.Detail != "" {
		s += "\n\t" + strings.ReplaceAll(strings.TrimRight(o.Detail, "\n"), "\n", "\n\t")
	}
	return s
}

const stall = `(soft lockup|hard LOCKUP|INFO: task .* blocked for more than|rcu.*detected stalls)`

// console patterns, each with what it means; the first line that matches one decides, for what follows it is often its
// consequence.
var (
	outOfMemoryLine = regexp.MustCompile(`(Out of memory: Killed process|` +
		`Kernel panic - not syncing: (System is deadlocked on memory|` +
		`Out of memory)|invoked oom-killer|Initramfs unpacking failed: write error)`)
	oopsLine = regexp.MustCompile(`(BUG: (unable to handle|kernel NULL)|\bOops:|general protection fault|` +
		`kernel BUG at|double fault:|invalid opcode:|divide error:|KASAN:)`)
	panicLine   = regexp.MustCompile(`Kernel panic - not syncing`)
	warningLine = regexp.MustCompile(`WARNING: |refcount_t:|list_(add|del) corruption|` + stall)
	stallLine   = regexp.MustCompile(stall)
)

// trouble finds what the kernel says of itself on its console: the kind, and the text from the line that says it.
func trouble(console string) (Kind, string) {
	lines := strings.Split(strings.ReplaceAll(console, "\r\n", "\n"), "\n")
	for n, line := range lines {
		switch {
		case outOfMemoryLine.MatchString(line):
			return OutOfMemory, matching(lines[n:], outOfMemoryLine)
		case oopsLine.MatchString(line):
			return Oops, excerpt(lines[n:], 60)
		case panicLine.MatchString(line):
			return Panic, excerpt(lines[n:], 60)
		}
	}
	for n, line := range lines {
		if stallLine.MatchString(line) {
			return Hang, excerpt(lines[n:], 40)
		}
	}
	return "", ""
}

func matching(lines []string, what *regexp.Regexp) string {
	other := func(s string) bool { return !what.MatchString(s) }
	return strings.Join(slices.DeleteFunc(slices.Clone(lines), other), "\n")
}

// excerpt is the beginning of what the kernel says, up to where a panic says that it is at its end.
func excerpt(lines []string, n int) string {
	for i, line := range lines {
		if strings.Contains(line, "---[ end Kernel panic") {
			n = min(n, i+1)
			break
		}
	}
	return strings.TrimRight(strings.Join(lines[:min(n, len(lines))], "\n"), "\n")
}

// observed is what the host saw of a guest, from which classify judges.
type observed struct {
	console  string // what the kernel wrote
	ready    bool   // programs could start
	done     bool   // init said that it is through
	failed   string // init said that it cannot go on
	running  string // the program that runs, or ran when the guest ended
	results  []Result
	timedOut bool // the host ended it
	limit    time.Duration
	output   string // the end of what the last program wrote, if it was asked where it is, from then on
	before   string // the end of what it wrote before that
	emulator string // what QEMU complained of

	fastClock bool // it was ended because of its clock
	booted    bool // init ran
}

// brokeEarly says that a guest that ended so never came to run a program, and may do so when it is booted again: its
// kernel broke, or stood still or stopped before it ran init. A kernel without an init to run, or without the memory
// for one, would say so again, and so would QEMU.
func (s *observed) brokeEarly(how Kind) bool {
	switch {
	case s.ready:
		return false
	case s.booted: // init says what else it waits for, or what it lacks
		return how == Panic || how == Oops
	}
	switch how {
	case Panic:
		return !noInit.MatchString(s.console)
	case Oops, Hang:
		return true
	case Broken:
		return s.emulator == ""
	}
	return false
}

var noInit = regexp.MustCompile(`not syncing: .*(init|VFS)`)

// classify tells how a guest ended. What the kernel says of itself explains a program that failed, so it comes first.
func classify(s observed) *Outcome {
	o := &Outcome{Results: s.results, Program: s.running}
	for line := range strings.Lines(s.console) {
		if warningLine.MatchString(line) {
			o.Warnings = append(o.Warnings, strings.TrimSpace(line))
		}
	}
	kind, text := trouble(s.console)
	var stuck *Result
	for i, r := range s.results {
		if (r.Status != 0 || r.TimedOut) && o.Status == 0 {
			o.Status, o.Program = r.Status, r.Program
		}
		if r.TimedOut && stuck == nil {
			stuck = &s.results[i]
		}
	}
	switch {
	case kind == Panic || kind == Oops || kind == OutOfMemory:
		o.Kind, o.Detail = kind, text
	case stuck != nil:
		o.Kind, o.Program = Hang, stuck.Program
		o.Detail = join("the program did not end in time; it had written at last:", stuck.Last,
			"asked where it is, it wrote:", stuck.Where, text)
	case s.timedOut:
		o.Kind = Hang
		o.Detail = join(fmt.Sprintf("the guest did not end within %v; at last the programs wrote:", s.limit),
			lastLines(s.output, 20), "the kernel wrote:", lastLines(s.console, 20), text)
	case s.failed != "" && s.ready && kind == Hang:
		o.Kind, o.Detail = Hang, join(s.failed, text)
	case s.failed != "" && strings.Contains(s.failed, "stuck inside the kernel"):
		o.Kind, o.Detail = Hang, join(s.failed, lastLines(s.before, 10), firstLines(s.output, 60),
			lastLines(s.console, 20))
	case s.failed != "":
		o.Kind, o.Detail = Broken, join("init: "+s.failed, lastLines(s.console, 20))
	case !s.done:
		o.Kind, o.Detail = Broken, join("the guest stopped without saying why; the kernel wrote at last:",
			lastLines(s.console, 30), s.emulator)
	case o.Status != 0:
		o.Kind = Exited
		for _, r := range s.results {
			if r.Program == o.Program && r.Text != "" {
				o.Detail = r.Text
			}
		}
	default:
		o.Kind, o.Program = Passed, ""
	}
	return o
}

// firstLines is the beginning of a text, n lines of it at most.
func firstLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	return strings.Join(lines[:min(n, len(lines))], "\n")
}

func join(parts ...string) string {
	var all []string
	for _, p := range parts {
		if p != "" {
			all = append(all, p)
		}
	}
	return strings.Join(all, "\n")
}

// lastLines is the end of a text, n lines of it at most.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
