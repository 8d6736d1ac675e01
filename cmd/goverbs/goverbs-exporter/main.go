// SPDX-License-Identifier: BSD-2-Clause

// Command goverbs-exporter carries out goverbs exporter: goverbs becomes this program. Its options are those of
// goverbs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/exporter"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/exporting"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
)

// Exit codes, those of goverbs.
const (
	exitFailed = 1
	exitUsage  = 2
)

type commands struct {
	JSON     bool               `help:"Print one JSON document: the metrics, or where they are served." name:"json"`
	Exporter exporting.Exporter `cmd:"" help:"Serve metrics for Prometheus, or print them once."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], resources.Here(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command; it returns the exit code.
func run(ctx context.Context, args []string, host *resources.Host, stdout, stderr io.Writer) int {
	var c commands
	parser, err := kong.New(&c, kong.Name("goverbs"), kong.Writers(stdout, stderr))
	if err != nil {
		panic(err) // of the declarations above
	}
	if _, err := parser.Parse(args); err != nil {
		page.Say(stderr, "%v; goverbs --help lists what there is", err)
		return exitUsage
	}
	if err := c.export(ctx, host, stdout, stderr); err != nil {
		page.Say(stderr, "%v", err)
		return exitFailed
	}
	return 0
}

func (c *commands) export(ctx context.Context, host *resources.Host, stdout, stderr io.Writer) error {
	if c.Exporter.Processes < 0 {
		return fmt.Errorf("there cannot be %d processes", c.Exporter.Processes)
	}
	host.Publish(c.Exporter.Stats)
	registry := (&exporter.Collector{Host: host, Exporter: c.Exporter}).Registry()
	switch {
	case c.Exporter.Once && c.JSON:
		all, err := registry.Gather()
		if err != nil {
			return err
		}
		return page.Print(stdout, exporter.Document(all), true)
	case c.Exporter.Once:
		return exporter.Write(stdout, registry)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := exporter.Serve(ctx, c.Exporter.Listen, registry, func(at net.Addr) {
		if !c.JSON {
			page.Say(stderr, "metrics at http://%v/metrics", at)
		} else if err := page.Print(stdout, place{fmt.Sprintf("http://%v/metrics", at)}, true); err != nil {
			end(err)
		}
	})
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// place is where the metrics are, once the server listens.
type place struct {
	Address string `json:"address"`
}

func (p place) WriteText(w io.Writer) error {
	_, err := fmt.Fprintln(w, p.Address)
	return err
}
