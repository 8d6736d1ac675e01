// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/record"
	"github.com/goverbs/goverbs/gen/tables"
)

// likeness pins by hand what a directory has of the files that another release is pinned with: fetch.FromDir names
// the sums of all that it finds. A source tree lacks the pages that only a build makes.
func likeness(dir string, rel, like *fetch.Release) (*fetch.Release, error) {
	version := rel.Packages[0].Version
	installs, err := fetch.Published(dir)
	if err != nil {
		return nil, err
	}
	rel.Packages = nil
	for _, p := range like.Packages {
		q := &fetch.Package{Name: p.Name, Version: version}
		for _, h := range p.Headers {
			q.Headers = append(q.Headers, fetch.File{Name: h.Name})
		}
		for _, name := range unpinned(p, installs[p.Name]) { // new in this release
			q.Headers = append(q.Headers, fetch.File{Name: name})
		}
		for _, f := range p.Pages {
			q.Pages = append(q.Pages, fetch.File{Name: f.Name})
		}
		q.Links = slices.Clone(p.Links)
		rel.Packages = append(rel.Packages, q)
	}
	nowhere, err := os.MkdirTemp("", "goverbs-bump-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(nowhere)
	found := map[string]string{}
	_, err = fetch.FromDir(dir, rel, nowhere, nil)
	differs := (*fetch.MismatchError)(nil)
	if !errors.As(err, &differs) {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	for _, d := range differs.Diffs {
		found[d.File] = d.Found
	}
	take := func(files []fetch.File) (kept []fetch.File) {
		for _, f := range files {
			switch sum, differs := found[f.Name]; {
			case !differs && found[strings.TrimSuffix(f.Name, markdown)] != "":
			// Markdown of a page that is there itself
			case !differs:
				kept = append(kept, f) // a page that is not there, which FromDir reports
			case sum != "<missing>":
				kept = append(kept, fetch.File{Name: f.Name, Sum: sum})
			}
		}
		return kept
	}
	for _, p := range rel.Packages {
		p.Headers, p.Pages = take(p.Headers), take(p.Pages)
		p.Links = slices.DeleteFunc(p.Links, func(k fetch.Link) bool { return found[k.Name] != "" })
	}
	return rel, nil
}

// collect brings a directory's files into a cache below work and records them. Man pages that the directory lacks are
// read from the primary release and pinned with its sums, so that recording again gives the same model; or, where
// that is not at hand, its tables are taken as they are, which cannot be pinned.
func (c *bumpCmd) collect(t tree, lock *fetch.Lock, old *model.Release, rel *fetch.Release, work string,
	notes []string) (*incoming, error) {
	missing, err := fetch.FromDir(c.From, rel, work, nil)
	if differs := (*fetch.MismatchError)(nil); errors.As(err, &differs) {
		differs.Mend = fmt.Sprintf("%s is pinned already, with these sums: give --release NAME "+
			"(BUMP_FLAGS='--release NAME') if FROM is a release of its own, "+
			"or a FROM that has the files as pinned", rel.Name)
	}
	if err != nil {
		return nil, err
	}
	in := &incoming{pin: rel, notes: notes, files: filepath.Join(work, rel.Name)}
	if len(missing) > 0 {
		others, marked, err := in.standIns(t.cache(), lock.Primary(), missing, c.From)
		if errors.Is(err, fs.ErrNotExist) {
			in.unpinned = fmt.Errorf("%s lacks %d man pages, and those of %s are not in headers/cache: run make "+
				"headers first", c.From, len(missing), old.Name)
			return in, c.withoutPages(in, old, work, missing)
		}
		if err != nil {
			return nil, err
		}
		if others {
			in.unpinned = fmt.Errorf("%s has its headers but not its man pages: give FROM=%s, which is pinned, to "+
				"take both from the archive", c.From, rel.Name)
		}
		for _, name := range marked {
			in.notes = append(in.notes, fmt.Sprintf("%s was read as Markdown, for its tables", name))
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
		}
		in.notes = append(in.notes, fmt.Sprintf("%d man pages are not in %s; those of %s were read instead, so what "+
			"they say is no news of %s: %s",
			len(missing), c.From, old.Name, rel.Name, strings.Join(missing, " ")))
	}
	in.model, err = c.record(work, in.pin)
	return in, err
}

// standIns takes the missing pages from the primary release in the cache, where they have to be as pinned, and pins
// those that have no sum yet; beside a page that is not the release's own lies its Markdown, where the directory has
// that. others tells that a page is pinned with another sum, marked names the pages that are there as Markdown.
func (in *incoming) standIns(cache string, primary *fetch.Release, missing []string, dir string) (others bool,
	marked []string, err error) {
	to := filepath.Join(in.files, "man")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return false, nil, err
	}
	rel := *in.pin
	rel.Packages = nil
	lent := map[string]fetch.File{}
	for _, p := range primary.Packages {
		for _, f := range p.Pages {
			lent[f.Name] = f
		}
	}
	var diffs []fetch.Diff
	for _, p := range in.pin.Packages {
		q := *p
		q.Pages = slices.Clone(p.Pages)
		for i, f := range p.Pages {
			if !slices.Contains(missing, f.Name) {
				continue
			}
			pinned, ok := lent[f.Name]
			if !ok {
				return false, nil, fmt.Errorf("page %s of %s: %w", f.Name, primary.Name, fs.ErrNotExist)
			}
			text, err := os.ReadFile(filepath.Join(cache, primary.Name, "man", f.Name))
			if err != nil {
				return false, nil, err
			}
			if found := sum(text); found != pinned.Sum {
				diffs = append(diffs, fetch.Diff{File: "man/" + f.Name, Want: pinned.Sum, Found: found})
				continue
			}
			if err := os.WriteFile(filepath.Join(to, f.Name), text, 0o644); err != nil {
				return false, nil, err
			}
			if f.Sum == pinned.Sum {
				continue // the release's own
			}
			q.Pages[i] = fetch.File{Name: f.Name, Sum: pinned.Sum, Of: primary.Name}
			if pinned.Of != "" {
				q.Pages[i].Of = pinned.Of
			}
			others = others || f.Sum != ""
			if !slices.Contains(tables.Markdown, f.Name) {
				continue
			}
			text, err = fetch.Markdown(dir, f.Name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return false, nil, err
			}
			marked = append(marked, f.Name)
			md := fetch.File{Name: f.Name + markdown, Sum: sum(text)}
			if err := os.WriteFile(filepath.Join(to, md.Name), text, 0o644); err != nil {
				return false, nil, err
			}
			if !slices.Contains(q.Pages, md) { // unless the release before was of a source tree, too
				q.Pages = append(q.Pages, md)
			}
		}
		for _, k := range q.Links {
			if !slices.Contains(missing, k.Name) {
				continue
			}
			if err := os.Symlink(k.Target, filepath.Join(to, k.Name)); err != nil {
				return false, nil, err
			}
		}
		rel.Packages = append(rel.Packages, &q)
	}
	if len(diffs) > 0 {
		return false, nil, &fetch.MismatchError{
			Release: primary.Name, Dir: filepath.Join(cache, primary.Name), Diffs: diffs,
			Mend: "its man pages were to stand in for those that FROM lacks: run make headers, which brings them again",
		}
	}
	in.pin = &rel
	return others, marked, nil
}

// markdown is what the name of a man page's Markdown has behind that of the page.
const markdown = ".md"

func sum(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

func (c *bumpCmd) withoutPages(in *incoming, old *model.Release, work string, missing []string) (err error) {
	name := in.pin.Name
	include := filepath.Join(work, name, "include")
	if err := c.complete(include); err != nil {
		return err
	}
	if in.model, err = record.Release(name, os.DirFS(include), include, nil, ""); err != nil {
		return err
	}
	in.model.Tables, in.model.Flags, in.model.Unread = old.Tables, old.Flags, old.Unread
	in.model.StandIns = map[string]string{}
	for _, page := range missing {
		in.model.StandIns[page] = old.PageRelease(page)
	}
	in.notes = append(in.notes, fmt.Sprintf("%d man pages are not in %s; the tables of %s were taken instead, and "+
		"are not compared", len(missing), c.From, old.Name))
	return nil
}
