// SPDX-License-Identifier: BSD-2-Clause

// Command gen is the generator: it downloads pinned headers, records them as models, and generates generated/ from the
// models. The Makefile calls it. Run `go run ./gen/cmd/gen --help` for usage.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/internal/printable"
)

type cli struct {
	Root string `help:"Root of the module (default: found from the working directory)." type:"existingdir"`

	Headers  headersCmd  `cmd:"" help:"Download the pinned headers and man pages to headers/cache and check their sums."`
	Pin      pinCmd      `cmd:"" help:"Pin a release of the archive in headers.lock."`
	Record   recordCmd   `cmd:"" help:"Record models of the releases in headers/cache."`
	Measured measuredCmd `cmd:"" help:"Add measured answers of a provider to headers/measured."`
	Ioctls   ioctlsCmd   `cmd:"" help:"Record the ioctl methods of a kernel from its modules in headers/ioctls."`
	Generate generateCmd `cmd:"" help:"Generate generated/ from the recorded models."`
	Summary  summaryCmd  `cmd:"" help:"Summarize generated declarations, library symbols and tables."`
	Tables   tablesCmd   `cmd:"" help:"Print the validity tables as text, JSON or HTML."`
	Bump     bumpCmd     `cmd:"" help:"Make another release of a project primary and report the changes."`
	Diff     diffCmd     `cmd:"" help:"Report changes between two recorded releases."`
}

// helps holds the longer help texts of flags and arguments.
var helps = kong.Vars{
	"bump_from": "Include directory, source tree, package version and suite of the " +
		"archive (65.0-1.1@sid), or a pinned release (56.1).",
	"bump_release": "Release in a directory that does not name it.",
	"bump_version": "Debian package version of a directory; without it, the release can only be read " +
		"again from FROM.",
	"headers_from": "Copy them from this include directory or source tree instead of downloading " +
		"them.",
	"measured_kernel": "Kernel of the measurement, as in the file names.",
	"measured_source": "Measured system, with versions: \"Soft-RoCE, Linux 6.1.176, rdma-core 44.0\". " +
		"Required unless headers/measured already has the same answers.",
}

// tree holds the paths in the module.
type tree struct{ root string }

func (t tree) at(path string) string { return filepath.Join(t.root, filepath.FromSlash(path)) }
func (t tree) cache() string         { return t.at("headers/cache") }
func (t tree) models() string        { return t.at("headers/models") }
func (t tree) measured() string      { return t.at("headers/measured") }
func (t tree) ioctls() string        { return t.at("headers/ioctls") }

// sources returns the directories of recorded facts, with models from a directory.
func (t tree) sources(models string) generate.Sources {
	return generate.Sources{Models: models, Measured: t.measured(), Ioctls: t.ioctls()}
}

func (t tree) lock() (*fetch.Lock, error) {
	path := t.at("headers/headers.lock")
	text, err := bounded.Read(path)
	if err != nil {
		return nil, err
	}
	return fetch.ParseLock(path, text)
}

// result generates in memory.
func (t tree) result() (*generate.Result, error) {
	lock, err := t.lock()
	if err != nil {
		return nil, err
	}
	var pinned, primary []string
	for _, rel := range lock.Releases {
		pinned = append(pinned, rel.File())
		if rel.Role == fetch.Primary {
			primary = append(primary, rel.File())
		}
	}
	if err := generate.CheckPinned(t.models(), pinned); err != nil {
		return nil, err
	}
	return generate.FromModels(t.sources(t.models()), primary...)
}

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // uses a few hundred MB more memory and is faster
	}
	var c cli
	ctx := kong.Parse(&c, kong.Name("gen"), kong.Description("goverbs' generator: headers → models → Go."),
		kong.UsageOnError(), kong.Exit(exit), helps)
	root, err := findRoot(c.Root)
	if err == nil {
		err = ctx.Run(tree{root: root})
	}
	if err != nil {
		// quoted header text may contain control characters
		fmt.Fprintln(os.Stderr, "gen:", printable.Text(err.Error()))
		if errors.As(err, &usageError{}) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// findRoot walks up to the module's go.mod.
func findRoot(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "headers", "headers.lock")); err == nil {
			return dir, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no headers/headers.lock in this directory or above; run inside the goverbs " +
				"module or give --root")
		}
		dir = parent
	}
}
