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

// moveCommands move data, or programs.
type moveCommands struct {
	CP   cpCommand   `cmd:"" name:"cp" help:"Copy a file, from memory to memory."`
	Echo echoCommand `cmd:"" help:"Send lines that come back: a demonstration of streams."`
	Run  runCommand  `cmd:"" help:"Run a program of C or Python on the software device."`
}

// onDevice has what connects by the connection manager use a device.
func onDevice(name string) error {
	if name == "" {
		return nil
	}
	return os.Setenv("GOVERBS_DEVICE", name)
}

// onTerminal is for people: it shows a line in place of the last one. It is nil where no terminal is.
func onTerminal(w io.Writer) func(line string) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func(line string) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			line = string([]rune(line)[:min(utf8.RuneCountInString(line), width-1)]) // or it would fill several
		}
		fmt.Fprintf(f, "\r\x1b[K%s", line)
	}
}

// progress is onTerminal of percents.
func progress(w io.Writer) func(done, of uint64) {
	show := onTerminal(w)
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
	File   string `arg:"" type:"path" help:"File to send; with --listen, the name that what arrives gets."`
	Peer   string `arg:"" optional:"" help:"HOST or HOST:PORT where goverbs cp --listen waits."`
	Listen string `placeholder:"HOST" help:"Wait for a file at an address of this host's device, HOST or HOST:PORT."`
	Most   uint64 `default:"1099511627776" help:"Refuse a file with more bytes."`
	Device string `short:"d" predictor:"device" name:"ib-dev" help:"Device; without it, GOVERBS_DEVICE or the one that leads there."`
}

func (c cpCommand) Run(o output) error {
	if (c.Peer == "") == (c.Listen == "") {
		return errors.New("say where the file goes, goverbs cp FILE HOST, or that it comes, goverbs cp --listen HOST " +
			"FILE")
	}
	if err := onDevice(c.Device); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	filecopy.Leave = sync.OnceValues(leave.Manager)
	var result *filecopy.Result
	var err error
	if c.Listen != "" {
		result, err = filecopy.Receive(ctx, filecopy.Address(c.Listen), c.File, c.Most, func(at string) {
			page.Say(o.problems, "waiting for a file at %s", at)
		}, func(why error) {
			page.Say(o.problems, "refused a request, waiting for another one: %v", why)
		})
	} else {
		result, err = filecopy.Send(ctx, c.File, filecopy.Address(c.Peer), progress(o.problems))
	}
	if err != nil {
		return err
	}
	return o.print(result)
}

// echoCommand is a demonstration of streams.
type echoCommand struct {
	Peer    string `arg:"" optional:"" help:"HOST or HOST:PORT where goverbs echo --listen waits."`
	Listen  string `placeholder:"HOST" help:"Send back what comes, at an address of this host's device."`
	Clients int    `default:"64" help:"With --listen, serve this many clients at most; one host gets three quarters."`
	Device  string `short:"d" predictor:"device" name:"ib-dev" help:"Device; without it, GOVERBS_DEVICE or the one that leads there."`
}

func (c echoCommand) Run(o output) error {
	if (c.Peer == "") == (c.Listen == "") {
		return errors.New("say where to send lines, goverbs echo HOST, or where to wait for them, " +
			"goverbs echo --listen HOST")
	}
	if err := onDevice(c.Device); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	if c.Listen != "" {
		return o.serving(ctx, "echo", func(ctx context.Context, at func(string)) error {
			return leave.Until(ctx, func(ctx context.Context) error {
				return echo.Serve(ctx, echo.Address(c.Listen), max(c.Clients, 1), at)
			})
		})
	}
	return leave.Until(ctx, func(ctx context.Context) error {
		if !o.json {
			w := o.w
			if onTerminal(w) != nil { // which would obey the peer
				clean := printable.Writer(w)
				defer clean.Close()
				w = clean
			}
			_, err := echo.Talk(ctx, echo.Address(c.Peer), o.in, w)
			return err
		}
		result, err := echo.Talk(ctx, echo.Address(c.Peer), o.in, io.Discard)
		if err != nil {
			return err
		}
		return o.print(result)
	})
}

// serving runs a server that says where it listens. With --json that is the document, which a program may wait for.
func (o output) serving(ctx context.Context, what string,
	serve func(ctx context.Context, at func(address string)) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := serve(ctx, func(address string) {
		if !o.json {
			page.Say(o.problems, "%s at %s", what, address)
		} else if err := o.print(listening{address}); err != nil {
			end(err)
		}
	})
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// listening is what a server says once.
type listening struct {
	Address string `json:"address"`
}

func (l listening) WriteText(w io.Writer) error {
	_, err := fmt.Fprintln(w, l.Address)
	return err
}

// runCommand runs a program on the drop-in libraries.
type runCommand struct {
	Device  string   `short:"d" predictor:"device" name:"ib-dev" help:"soft@ADDRESS; without it, GOVERBS_DEVICE, or 127.0.0.1."`
	Capture string   `placeholder:"FILE" help:"Write the program's packets to a file for Wireshark; %p is its number."`
	Program []string `arg:"" passthrough:"" help:"The program and its arguments."`
}

func (c runCommand) Run(o output) error {
	words := c.Program
	if words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("say which program to run: goverbs run -- ibv_devinfo")
	}
	runner, err := dropin.Find()
	if err != nil {
		return err
	}
	if err := onDevice(c.Device); err != nil {
		return err
	}
	if c.Capture != "" {
		os.Setenv("GOVERBS_SOFT_CAPTURE", c.Capture)
	}
	if why := dropin.Without(words[0]); why != "" {
		page.Say(o.problems, "%s runs without the drop-in libraries: %s", words[0], why)
	}
	return o.start(exec.Command(runner, words...), words[0])
}
