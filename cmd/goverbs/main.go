// SPDX-License-Identifier: BSD-2-Clause

// Command goverbs inspects, tests and debugs RDMA on hardware and software devices. Every subcommand prints JSON with
// --json. Run it with --help.
package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/explain"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/inventory"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/top"
)

// Exit codes. They are part of the interface and do not change.
const (
	exitOK     = 0
	exitFailed = 1 // the error explains it
	exitUsage  = 2 // unknown subcommand, flag or argument, or a value out of range
	exitDiffer = 3 // abi or diff found a difference; the output lists it
	// 128 and more: interrupted by a signal (see interruption), or the exit code of a program that it ran
)

type commands struct {
	JSON    bool             `help:"Print JSON." name:"json"`
	Version kong.VersionFlag `help:"Print the version and exit."`

	Devices devicesCommand `cmd:"" help:"List RDMA devices and their ports."`
	GIDs    gidsCommand    `cmd:"" name:"gids" help:"List GIDs and mark the recommended one."`
	Query   queryCommand   `cmd:"" help:"Show all attributes of a device."`
	Ping    pingCommand    `cmd:"" help:"Ping a host over RC, UD and the connection manager."`
	Serve   serveCommand   `cmd:"" help:"Answer pings from goverbs, rping, ibv_rc_pingpong and ibv_ud_pingpong."`
	Doctor  doctorCommand  `cmd:"" help:"Diagnose RDMA problems on this host or between two hosts."`
	Perf    perfCommand    `cmd:"" help:"Measure bandwidth or latency, also against perftest."`
	Explain explainCommand `cmd:"" help:"Explain a status, event, operation, state transition or errno."`
	Trace   traceCommand   `cmd:"" help:"Record and explain the verbs calls of a program."`

	watchCommands
	moveCommands
	factsCommands
	shellCommands
}

// output is where a subcommand prints.
type output struct {
	w        io.Writer
	problems io.Writer // stderr: progress and diagnostics
	in       io.Reader
	json     bool
	parser   *kong.Kong

	interrupted *interruption
}

func (o output) print(v page.Text) error { return page.Print(o.w, v, o.json) }

type devicesCommand struct{}

func (devicesCommand) Run(o output) error {
	all, err := inventory.List()
	if err != nil {
		return err
	}
	return o.print(all)
}

type gidsCommand struct {
	Device string `arg:"" optional:"" predictor:"device" help:"Device; default: all devices."`
}

func (c gidsCommand) Run(o output) error {
	all, err := inventory.GIDsOf(c.Device)
	if err != nil {
		return err
	}
	return o.print(all)
}

type explainCommand struct {
	What []string `arg:"" help:"Term, such as 12, RETRY_EXC_ERR, PORT_ERR, RDMA_READ UC, RC INIT RTR, UD, ibv_reg_mr (ENOMEM)."`
}

func (c explainCommand) Run(o output) error {
	all, err := explain.Of(c.What)
	if err != nil {
		return err
	}
	return o.print(all)
}

func main() {
	if !leave.Holds(os.Args[1:]) {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
}

// newParser returns a parser that fills c. Its output goes to stdout and stderr; it calls exit after --help and
// --version.
func newParser(c *commands, stdout, stderr io.Writer, exit func(code int)) *kong.Kong {
	return kong.Must(c, kong.Name("goverbs"), kong.Writers(stdout, stderr), kong.Exit(exit),
		kong.Vars{"sorts": strings.Join(top.SortKeys, ","), "version": version()},
		kong.Description("Inspect, test and debug RDMA."))
}

// run runs the command and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	var c commands
	printed, help := false, &checked{w: stdout}
	parser := newParser(&c, help, stderr, func(int) { printed = true })
	if len(args) == 0 {
		args = []string{"--help"}
	}
	var interrupted interruption
	command, err := parser.Parse(args)
	switch {
	case printed || help.err != nil: // even if Parse failed
		err = help.err
	case err != nil:
		page.Log(stderr, "%v; see %s --help", err, subcommand(err))
		return exitUsage
	default:
		err = command.Run(output{stdout, stderr, os.Stdin, c.JSON, parser, &interrupted})
	}
	if exit := exitStatus(0); errors.As(err, &exit) {
		return int(exit)
	}
	if err != nil && interrupted.Load() != 0 {
		page.Log(stderr, "interrupted")
		return interrupted.exitInterrupted()
	}
	if wrong := (usageError{}); errors.As(err, &wrong) {
		page.Log(stderr, "%v; see %s --help", err, command.Selected().FullPath())
		return exitUsage
	}
	if err != nil {
		page.Log(stderr, "%v", err)
		return exitFailed
	}
	return exitOK
}

// subcommand returns the command line of the subcommand that an error is about.
func subcommand(err error) string {
	if wrong := new(kong.ParseError); errors.As(err, &wrong) && wrong.Context != nil {
		if node := wrong.Context.Selected(); node != nil {
			return node.FullPath()
		}
	}
	return "goverbs"
}

// checked keeps the first write error, which kong does not report.
type checked struct {
	w   io.Writer
	err error
}

func (c *checked) Write(b []byte) (n int, err error) {
	if n, err = c.w.Write(b); err != nil && c.err == nil {
		c.err = err
	}
	return n, err
}
