// SPDX-License-Identifier: BSD-2-Clause

// Command goverbs is for people who operate or debug RDMA: it lists devices and their GIDs, those in software too, and
// explains what verbs say. Every subcommand prints JSON with --json. Run it with --help.
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

// Exit codes. They do not change.
const (
	exitOK     = 0
	exitFailed = 1 // the error says why
	exitUsage  = 2 // there is no such subcommand, option or argument
	exitDiffer = 3 // what abi or diff compared does not fit; the output says why
	// 128 and more: a signal ended what goverbs did, see interruption, or a program that it ran
)

type commands struct {
	JSON    bool             `help:"Print one JSON document." name:"json"`
	Version kong.VersionFlag `help:"Print the version, and end."`

	Devices devicesCommand `cmd:"" help:"List devices and their ports, of the kernel and in software."`
	GIDs    gidsCommand    `cmd:"" name:"gids" help:"List GIDs, and say which one a program does best with."`
	Query   queryCommand   `cmd:"" help:"Tell everything that a device says of itself."`
	Ping    pingCommand    `cmd:"" help:"Ping a host in every way, and explain failures."`
	Serve   serveCommand   `cmd:"" help:"Answer pings of goverbs, rping, ibv_rc_pingpong and ibv_ud_pingpong."`
	Doctor  doctorCommand  `cmd:"" help:"Find what keeps RDMA from working, here or to a peer, and what mends it."`
	Perf    perfCommand    `cmd:"" help:"Measure bandwidth or latency; the peer may be a program of perftest."`
	Explain explainCommand `cmd:"" help:"Explain a completion status, an event, an operation, a transition, an errno."`
	Trace   traceCommand   `cmd:"" help:"Record what a program does with verbs, and say what went wrong."`

	watchCommands
	moveCommands
	factsCommands
	shellCommands
}

// output is where a subcommand prints.
type output struct {
	w        io.Writer
	problems io.Writer // what people should know while it goes on
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
	Device string `arg:"" optional:"" predictor:"device" help:"Name of one device; without it, of all."`
}

func (c gidsCommand) Run(o output) error {
	all, err := inventory.GIDsOf(c.Device)
	if err != nil {
		return err
	}
	return o.print(all)
}

type explainCommand struct {
	What []string `arg:"" help:"12, RETRY_EXC_ERR, PORT_ERR, RDMA_READ UC, RC INIT RTR, UD, ibv_reg_mr (ENOMEM)."`
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

// newParser reads command lines into c. What kong prints goes to stdout, and exit follows --help and --version.
func newParser(c *commands, stdout, stderr io.Writer, exit func(code int)) *kong.Kong {
	return kong.Must(c, kong.Name("goverbs"), kong.Writers(stdout, stderr), kong.Exit(exit),
		kong.Vars{"sorts": strings.Join(top.SortKeys, ","), "version": version()},
		kong.Description("Looks at RDMA devices, those in software too, and explains what verbs say."))
}

// run is the command; it returns the exit code.
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
	case printed || help.err != nil: // whatever else Parse found
		err = help.err
	case err != nil:
		page.Say(stderr, "%v; goverbs --help lists what there is", err)
		return exitUsage
	default:
		err = command.Run(output{stdout, stderr, os.Stdin, c.JSON, parser, &interrupted})
	}
	if ended := exitStatus(0); errors.As(err, &ended) {
		return int(ended)
	}
	if err != nil && interrupted.Load() != 0 {
		page.Say(stderr, "interrupted")
		return interrupted.exitInterrupted()
	}
	if err != nil {
		page.Say(stderr, "%v", err)
		return exitFailed
	}
	return exitOK
}

// checked remembers that something could not be written, which the parser of the command line does not say.
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
