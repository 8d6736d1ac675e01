// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Kind classifies how a guest ended.
type Kind string

const (
	Passed      Kind = "passed"
	Exited      Kind = "exited"        // a program exited with a status other than 0
	Oops        Kind = "oops"          // kernel oops
	Panic       Kind = "panic"         // kernel panic
	OutOfMemory Kind = "out of memory" // the guest ran out of memory
	Hang        Kind = "hang"          // a program or the guest did not end in time
	Broken      Kind = "broken"        // the guest stopped before the programs ran, or for an unknown reason
)

// Outcome describes how a guest ended.
type Outcome struct {
	Kind    Kind
	Before  bool          // all programs passed before and were skipped
	Status  int           // exit status of the first program that failed; 128 + signal if it was killed
	Program string        // the failed program, or the one that was running when the guest ended
	Detail  string        // the kernel's message, or the last lines of output
	Boot    time.Duration // time until the programs could start
	Elapsed time.Duration
	Files   map[string][]byte // files that programs wrote to GOVERBS_OUT
	Results []Result
	// Warnings holds lines in which the kernel reports problems from which it recovered.
	Warnings []string
}

// Result describes how one program ended.
type Result struct {
	Program  string
	Status   int
	Signal   string
	TimedOut bool
	Elapsed  time.Duration
	Text     string // why it could not be started
	Last     string // last lines of output before the timeout
	Where    string // output after SIGQUIT: Go programs print their goroutines
}

// Exit statuses of vmtest that are not those of a program.
const (
	StatusHang        = 124
	StatusBroken      = 125
	StatusKernel      = 126
	StatusOutOfMemory = 137
)

// ExitStatus returns 0 if all programs passed, the status of the failed program, or one of the statuses above.
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
		return s + " before, unchanged since"
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

// Patterns of console lines. The first line that matches one determines the outcome, since later lines are often
// consequences.
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

// trouble searches the console for a kernel failure. It returns the kind and the text from that line on.
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

func matching(lines []string, name *regexp.Regexp) string {
	other := func(s string) bool { return !name.MatchString(s) }
	return strings.Join(slices.DeleteFunc(slices.Clone(lines), other), "\n")
}

// excerpt returns the first n lines of a kernel failure, at most up to the end of the panic.
func excerpt(lines []string, n int) string {
	for i, line := range lines {
		if strings.Contains(line, "---[ end Kernel panic") {
			n = min(n, i+1)
			break
		}
	}
	return strings.TrimRight(strings.Join(lines[:min(n, len(lines))], "\n"), "\n")
}

// observed is the state of a guest as seen by the host. It is the input of classify.
type observed struct {
	console  string // output of the kernel
	ready    bool   // programs could start
	done     bool   // init reported the end
	failed   string // error reported by init
	running  string // current program, or the last one when the guest ended
	results  []Result
	timedOut bool // the host killed the guest
	limit    time.Duration
	output   string // end of the last program's output; from SIGQUIT on if it was sent
	before   string // end of its output before SIGQUIT
	emulator string // error output of QEMU

	fastClock bool // the host killed the guest because of its clock
	booted    bool // init ran
}

// brokeEarly reports whether a guest that ended with this kind never ran a program and may succeed when it is booted
// again: its kernel crashed, hung or stopped before it ran init. Missing init, too little memory and errors of QEMU are
// permanent.
func (s *observed) brokeEarly(how Kind) bool {
	switch {
	case s.ready:
		return false
	case s.booted: // init reports its own failures
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

// classify determines how a guest ended. A kernel failure takes precedence, since it explains the failure of a program.
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
		o.Detail = join("the program did not end in time; last output:", stuck.Last,
			"output after SIGQUIT:", stuck.Where, text)
	case s.timedOut:
		o.Kind = Hang
		o.Detail = join(fmt.Sprintf("the guest did not end within %v; last output of the programs:", s.limit),
			lastLines(s.output, 20), "last output of the kernel:", lastLines(s.console, 20), text)
	case s.failed != "" && s.ready && kind == Hang:
		o.Kind, o.Detail = Hang, join(s.failed, text)
	case s.failed != "" && strings.Contains(s.failed, "stuck in the kernel"):
		o.Kind, o.Detail = Hang, join(s.failed, lastLines(s.before, 10), firstLines(s.output, 60),
			lastLines(s.console, 20))
	case s.failed != "":
		o.Kind, o.Detail = Broken, join("init: "+s.failed, lastLines(s.console, 20))
	case !s.done:
		o.Kind, o.Detail = Broken, join("the guest stopped for no known reason; last output of the kernel:",
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

// firstLines returns at most the first n lines of s.
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

// lastLines returns at most the last n lines of s.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
