// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/diff"
	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

const statusHelp = "Exit status: 0 nothing changed, 3 additions only, 4 breaking changes, 1 error, 2 wrong usage."

type bumpCmd struct {
	Project string        `help:"Project of FROM." default:"rdma-core" placeholder:"NAME"`
	From    string        `arg:"" optional:"" help:"${bump_from}" placeholder:"FROM"`
	DryRun  bool          `help:"Report only, write nothing."`
	Release string        `help:"${bump_release}" placeholder:"NAME"`
	Version string        `help:"${bump_version}" placeholder:"VERSION"`
	Suite   []string      `help:"Archive suites that have this version." placeholder:"SUITE"`
	JSON    bool          `help:"Print the report as JSON."`
	Timeout time.Duration `help:"Download timeout." default:"5m"`
}

// Help is printed by --help.
func (c *bumpCmd) Help() string {
	return "Read the headers of another release, record its model, pin it as primary, regenerate generated/, and " +
		"report " +
		"what changed for C and for Go. If anything fails, nothing is written. " + statusHelp
}

// errNoFrom is returned if FROM is missing, also by make bump.
var errNoFrom = errors.New(`FROM is missing; give one of
	66.0-1@sid           package version and archive suite
	56.1                 release pinned in headers/headers.lock
	/usr/include         include directory, or directory of unpacked packages
	../rdma-core         source tree
for example: make bump FROM=66.0-1@sid DRY_RUN=1 (or gen bump 66.0-1@sid --dry-run), which only reports`)

// Run exits with the verdict as its status.
func (c *bumpCmd) Run(t tree) error {
	if err := c.check(); err != nil {
		return err
	}
	verdict, err := c.bump(t)
	if err == nil {
		os.Exit(verdict.ExitStatus())
	}
	return err
}

func (c *bumpCmd) bump(t tree) (diff.Verdict, error) {
	lock, err := t.lock()
	if err != nil {
		return 0, err
	}
	primary := lock.Primary(c.Project)
	if primary == nil {
		return 0, fmt.Errorf("headers.lock pins no release of %s; pin the first one with gen pin", c.Project)
	}
	old, err := generate.ReadModel(filepath.Join(t.models(), primary.File()+".json"))
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "goverbs-bump-")
	if err != nil {
		return 0, err
	}
	keepWork := false
	defer func() {
		if !keepWork {
			os.RemoveAll(work)
		}
	}()
	in, err := c.read(t, lock, old, work)
	if err != nil {
		return 0, err
	}
	models := filepath.Join(work, "models")
	fresh, failed := regenerate(t, lock, in.model, models)
	report, err := c.report(t, old, in, fresh, models)
	if err != nil {
		return 0, err
	}
	newer := rowsOfNewer(failed, in.model, old)
	switch {
	case newer:
		report.Notes = append(report.Notes, fmt.Sprintf("generating from %s fails: rows name declarations of later "+
			"releases",
			in.model))
	case failed != nil:
		report.Notes = append(report.Notes, fmt.Sprintf("generating from %s fails: the errors are listed below",
			in.model))
	}
	if err := printReport(report, c.JSON); err != nil {
		return 0, err
	}
	switch {
	case c.DryRun && newer: // nothing to fix, since the release is older
		logf("dry run: nothing written; generating from %s would require deleting these rows:\n%v", in.model, failed)
		return report.Verdict, nil
	case c.DryRun && failed != nil:
		return 0, fmt.Errorf("dry run: nothing written; generating from %s fails:\n%w", in.model,
			failed)
	case c.DryRun:
		logf("dry run: nothing written")
		return report.Verdict, nil
	case failed != nil:
		keepWork = true
		return 0, fmt.Errorf("generating from %s fails; nothing written, the model "+
			"is in %s:\n%w",
			in.model, models, failed)
	case in.unpinned != nil:
		return 0, fmt.Errorf("cannot pin %s, nothing written: %w", in.model, in.unpinned)
	}
	if err := write(t, lock, in, fresh); err != nil {
		return 0, err
	}
	if in.files != "" {
		if _, err := fetch.FromDir(in.files, in.pin, t.cache(), nil); err != nil {
			logf("headers/cache: %v", err) // not fatal: the cache only saves a download
		}
	}
	logf("written: headers/headers.lock, headers/models/%s.json, generated/", rules.FileOf(in.model))
	logf("Next: read the report and document breaking changes; make test; git add headers generated; git commit.")
	return report.Verdict, nil
}

// rowsOfNewer reports whether generating an older release fails only because rows name declarations of the primary
// release that it lacks.
func rowsOfNewer(failed error, older, primary *model.Release) bool {
	if failed == nil || project.CompareReleases(older.Name, primary.Name) >= 0 {
		return false
	}
	switch e := failed.(type) {
	case *rules.UnknownName:
		for _, h := range primary.Headers {
			for _, enum := range h.Enums {
				if slices.ContainsFunc(enum.Enumerators, func(v model.Enumerator) bool { return v.Name == e.Name }) {
					return true
				}
			}
		}
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(e error) bool { return !rowsOfNewer(e, older, primary) })
	case interface{ Unwrap() error }:
		return rowsOfNewer(e.Unwrap(), older, primary)
	}
	return false
}

// logf prints progress to standard error, separate from the report.
func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// regenerate generates from the recorded models and a new one, into a temporary directory.
func regenerate(t tree, lock *fetch.Lock, m *model.Release, dir string) (*generate.Result, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	recorded, err := filepath.Glob(filepath.Join(t.models(), "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range recorded {
		text, err := bounded.Read(path)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644); err != nil {
			return nil, err
		}
	}
	text, err := m.Encode()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, rules.FileOf(m)+".json"), text, 0o644); err != nil {
		return nil, err
	}
	primary := []string{rules.FileOf(m)}
	for _, rel := range lock.Releases {
		if rel.Role == fetch.Primary && rel.Project != m.Project {
			primary = append(primary, rel.File())
		}
	}
	return generate.FromModels(t.sources(dir), primary...)
}

// report compares the new release with the current generated/, since rules that were changed for the new release may no
// longer work for the old one. If generation failed, both sides are generated as far as the rules allow.
func (c *bumpCmd) report(t tree, old *model.Release, in *incoming, fresh *generate.Result,
	models string) (r *diff.Report, err error) {
	defer func() {
		if err == nil {
			r.Notes = append(r.Notes, in.notes...)
		}
	}()
	var was, is diff.API
	switch {
	case fresh != nil:
		now, err := sources(t.at("generated"))
		if err != nil {
			return nil, err
		}
		if was, err = diff.ReadAPI(diff.Public(now)); err != nil {
			return nil, err
		}
		if is, err = diff.ReadAPI(diff.Public(fresh.Files)); err != nil {
			return nil, err
		}
	case old.Name != in.model.Name:
		return recordedReport(t, models, rules.FileOf(old), rules.FileOf(in.model))
	}
	j, err := diff.DefaultJudgements()
	if err != nil {
		return nil, err
	}
	return diff.Compare(diff.Planned(old, was), diff.Planned(in.model, is), j), nil
}

// sources returns the Go files below a directory, by relative path.
func sources(dir string) (emit.Files, error) {
	files := emit.Files{}
	err := bounded.Walk(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		below, err := filepath.Rel(dir, path)
		if err == nil {
			files[filepath.ToSlash(below)], err = bounded.Read(path)
		}
		return err
	})
	return files, err
}

func recordedReport(t tree, models, old, new string) (*diff.Report, error) {
	recorded, err := generate.ReadModels(models)
	if err != nil {
		return nil, err
	}
	rows, err := bounded.Read(t.at("gen/rules/exceptions.txt"))
	if err != nil {
		return nil, err
	}
	return diff.Recorded(recorded, old, new, func(r *model.Release) (diff.API, []string, error) {
		return diff.GoAPI(r, recorded, string(rows))
	})
}

func printReport(r *diff.Report, asJSON bool) error {
	if !asJSON {
		fmt.Print(r.Text())
		return nil
	}
	text, err := r.JSON()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

// write replaces the lock, the model and generated/. If one step fails, it restores the others.
func write(t tree, lock *fetch.Lock, in *incoming, fresh *generate.Result) (err error) {
	text, err := in.model.Encode()
	if err != nil {
		return err
	}
	lockFile, modelFile := t.at("headers/headers.lock"), filepath.Join(t.models(), rules.FileOf(in.model)+".json")
	pinned, err := repin(lockFile, lock, in.pin)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path string
		text []byte
	}{{lockFile, pinned}, {modelFile, text}} {
		undo, keepErr := keep(f.path)
		if keepErr != nil {
			return keepErr
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, undo())
			}
		}()
		if err = replaceFile(f.path, f.text); err != nil {
			return err
		}
	}
	_, err = generate.Write(t.at("generated"), fresh.Files)
	return err
}

// keep saves a file and returns a function that restores it.
func keep(path string) (undo func() error, err error) {
	text, err := bounded.Read(path)
	if errors.Is(err, os.ErrNotExist) {
		return func() error {
			if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		}, nil
	}
	return func() error { return replaceFile(path, text) }, err
}

// repin returns the text of a lock with the release as primary. It replaces the pin of the same name.
func repin(name string, lock *fetch.Lock, primary *fetch.Release) ([]byte, error) {
	self := *primary
	self.Role = fetch.Primary
	next := &fetch.Lock{Releases: lock.Releases}
	next.Put(&self)
	text := next.Encode()
	_, err := fetch.ParseLock(name, text)
	return text, err
}

type diffCmd struct {
	Old  string `arg:"" help:"Recorded release: 56.1." placeholder:"OLD"`
	New  string `arg:"" help:"Recorded release: 65.0." placeholder:"NEW"`
	JSON bool   `help:"Print the report as JSON."`
}

// Help is printed by --help.
func (c *diffCmd) Help() string { return statusHelp }

// Run exits with the verdict as the status.
func (c *diffCmd) Run(t tree) error {
	verdict, err := c.compare(t)
	if err == nil {
		os.Exit(verdict.ExitStatus())
	}
	return err
}

func (c *diffCmd) compare(t tree) (diff.Verdict, error) {
	r, err := recordedReport(t, t.models(), c.Old, c.New)
	if err != nil {
		return 0, err
	}
	return r.Verdict, printReport(r, c.JSON)
}

// exit replaces kong's status for wrong usage with 2, which is not a verdict.
func exit(status int) {
	const kongUsage = 80
	if status == kongUsage {
		status = 2
	}
	os.Exit(status)
}
