// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/dropin"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/echo"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/filecopy"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/internal/printable"
)

// moveCommands move data or run programs.
type moveCommands struct {
	CP   cpCommand   `cmd:"" name:"cp" help:"Copy a file to another host over RDMA."`
	Echo echoCommand `cmd:"" help:"Send lines to a server that echoes them."`
	S3   s3Command   `cmd:"" name:"s3" help:"Serve S3 over RDMA in front of an S3 server."`
	Run  runCommand  `cmd:"" help:"Run a C or Python program on the software device."`
}

// useDevice makes rdma connections use the named device.
func useDevice(name string) error {
	if name == "" {
		return nil
	}
	return os.Setenv("GOVERBS_DEVICE", name)
}

// statusLine returns a function that replaces the current line of the terminal w, or nil if w is not a terminal.
func statusLine(w io.Writer) func(line string) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func(line string) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			line = string([]rune(line)[:min(utf8.RuneCountInString(line), width-1)]) // keep it on one row
		}
		fmt.Fprintf(f, "\r\x1b[K%s", line)
	}
}

// progress returns a function that shows a percentage on the terminal w, if it is one.
func progress(w io.Writer) func(done, of uint64) {
	show := statusLine(w)
	if show == nil {
		return func(done, of uint64) {}
	}
	last := uint64(101)
	return func(done, of uint64) {
		percent := done * 100 / max(of, 1)
		if percent != last {
			show(fmt.Sprintf("%3d %%", percent))
		}
		if last = percent; done == of {
			show("")
		}
	}
}

// cpCommand copies a file.
type cpCommand struct {
	File   string `arg:"" type:"path" help:"File to send; with --listen, file to write."`
	Peer   string `arg:"" optional:"" help:"HOST or HOST:PORT of goverbs cp --listen."`
	Listen string `placeholder:"HOST" help:"Receive a file at HOST or HOST:PORT, an address of an RDMA device."`
	Most   uint64 `default:"1099511627776" help:"Refuse files larger than this many bytes."`
	Device string `short:"d" predictor:"device" name:"ib-dev" help:"Device; default: GOVERBS_DEVICE or by route to the peer."`
}

// Validate makes a missing or superfluous destination a usage error.
func (c cpCommand) Validate() error {
	if (c.Peer == "") == (c.Listen == "") {
		return errors.New("give a destination (goverbs cp FILE HOST) or --listen (goverbs cp --listen HOST FILE)")
	}
	return nil
}

func (c cpCommand) Run(o output) error {
	if err := useDevice(c.Device); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	filecopy.Leave = sync.OnceValues(leave.Manager)
	var result *filecopy.Result
	var err error
	if c.Listen != "" {
		result, err = filecopy.Receive(ctx, filecopy.Address(c.Listen), c.File, c.Most, func(at string) {
			page.Log(o.problems, "waiting for a file on %s", at)
		}, func(reason error) {
			page.Log(o.problems, "request refused: %v; still waiting", reason)
		})
	} else {
		result, err = filecopy.Send(ctx, c.File, filecopy.Address(c.Peer), progress(o.problems))
	}
	if err != nil {
		return err
	}
	return o.print(result)
}

// echoCommand sends lines to an echo server, or is one.
type echoCommand struct {
	Peer    string `arg:"" optional:"" help:"HOST or HOST:PORT of goverbs echo --listen."`
	Listen  string `placeholder:"HOST" help:"Run the server at HOST or HOST:PORT, an address of an RDMA device."`
	Clients int    `default:"64" help:"Maximum number of clients with --listen; three quarters of it per host."`
	Device  string `short:"d" predictor:"device" name:"ib-dev" help:"Device; default: GOVERBS_DEVICE or by route to the peer."`
}

// Validate makes a missing or superfluous host a usage error.
func (c echoCommand) Validate() error {
	if (c.Peer == "") == (c.Listen == "") {
		return errors.New("give a host (goverbs echo HOST) or --listen (goverbs echo --listen HOST)")
	}
	return nil
}

func (c echoCommand) Run(o output) error {
	if err := within("--clients", c.Clients, 1, unlimited); err != nil {
		return err
	}
	if err := useDevice(c.Device); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	if c.Listen != "" {
		return o.runServer(ctx, "echoing", func(ctx context.Context, at func(string)) error {
			return leave.Until(ctx, func(ctx context.Context) error {
				return echo.Serve(ctx, echo.Address(c.Listen), c.Clients, at)
			})
		})
	}
	return leave.Until(ctx, func(ctx context.Context) error {
		if !o.json {
			w := o.w
			if statusLine(w) != nil { // the peer must not control the terminal
				clean := printable.Writer(w)
				defer clean.Close()
				w = clean
			}
			_, err := echo.RunClient(ctx, echo.Address(c.Peer), o.in, w)
			return err
		}
		result, err := echo.RunClient(ctx, echo.Address(c.Peer), o.in, io.Discard)
		if err != nil {
			return err
		}
		return o.print(result)
	})
}

// runServer runs a server and prints its address once it listens: to stderr, or with --json to stdout.
func (o output) runServer(ctx context.Context, name string,
	serve func(ctx context.Context, at func(address string)) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := serve(ctx, func(address string) {
		if !o.json {
			page.Log(o.problems, "%s on %s", name, address)
		} else if err := o.print(listening{address}); err != nil {
			end(err)
		}
	})
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// listening is the JSON output of a server.
type listening struct {
	Address string `json:"address"`
}

func (l listening) WriteText(w io.Writer) error {
	_, err := fmt.Fprintln(w, l.Address)
	return err
}

// runCommand runs a program with the drop-in libraries.
type runCommand struct {
	Device  string   `short:"d" predictor:"device" name:"ib-dev" help:"Default: GOVERBS_DEVICE or soft@127.0.0.1."`
	Capture string   `placeholder:"FILE" help:"Capture the program's packets to a pcap file; %p is its PID."`
	Program []string `arg:"" passthrough:"" help:"Program and its arguments."`
}

func (c runCommand) Run(o output) error {
	words := c.Program
	if words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("no program given; for example: goverbs run -- ibv_devinfo")
	}
	runner, err := dropin.Find()
	if err != nil {
		return err
	}
	if err := useDevice(c.Device); err != nil {
		return err
	}
	if c.Capture != "" {
		os.Setenv("GOVERBS_SOFT_CAPTURE", c.Capture)
	}
	if reason := dropin.Without(words[0]); reason != "" {
		page.Log(o.problems, "%s: drop-in libraries are not used: %s", words[0], reason)
	}
	return o.start(exec.Command(runner, words...), words[0])
}
