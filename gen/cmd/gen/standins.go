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

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/record"
	"github.com/goverbs/goverbs/gen/tables"
)

// pinLike pins those files of a directory that another release's pin lists. FromDir cannot do this, since it pins every
// file, and a source tree lacks the pages that only the build creates.
func pinLike(dir string, rel, like *fetch.Release) (*fetch.Release, error) {
	version := rel.Packages[0].Version
	installs, err := fetch.Published(rel.Project, dir)
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
		for _, f := range p.Libraries {
			q.Libraries = append(q.Libraries, fetch.File{Name: f.Name})
		}
		rel.Packages = append(rel.Packages, q)
	}
	empty, err := os.MkdirTemp("", "goverbs-bump-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(empty)
	found := map[string]string{}
	_, err = fetch.FromDir(dir, rel, empty, nil)
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
			// Markdown source of an existing page
			case !differs:
				kept = append(kept, f) // a missing page or library, which FromDir reports
			case sum != "<missing>":
				kept = append(kept, fetch.File{Name: f.Name, Sum: sum})
			}
		}
		return kept
	}
	for _, p := range rel.Packages {
		p.Headers, p.Pages, p.Libraries = take(p.Headers), take(p.Pages), take(p.Libraries)
		p.Links = slices.DeleteFunc(p.Links, func(k fetch.Link) bool { return found[k.Name] != "" })
	}
	return rel, nil
}

// collect copies a directory's files to a cache below work and records them. Missing man pages and libraries are copied
// from the primary release and pinned with its checksums, so that recording again gives the same model. If the cache
// lacks them too, the tables and symbols of that release's model are used, which cannot be pinned. Recorded symbols of
// a pinned library are kept.
func (c *bumpCmd) collect(t tree, lock *fetch.Lock, old *model.Release, rel *fetch.Release, work string,
	notes []string) (*incoming, error) {
	missing, err := fetch.FromDir(c.From, rel, work, nil)
	if differs := (*fetch.MismatchError)(nil); errors.As(err, &differs) {
		differs.Hint = fmt.Sprintf("%s is already pinned with these sums; give --release NAME "+
			"(BUMP_FLAGS='--release NAME') if FROM is another release, "+
			"or a FROM whose files match", rel.Name)
	}
	if err != nil {
		return nil, err
	}
	in := &incoming{pin: rel, notes: notes, files: filepath.Join(work, rel.File())}
	missing, kept, err := ownLibraries(rel, missing, filepath.Join(t.cache(), rel.File()), in.files)
	if err != nil {
		return nil, err
	}
	in.notes = append(in.notes, keptNotes(rel, kept)...)
	if len(missing) > 0 {
		others, marked, err := in.standIns(t.cache(), lock.Primary(c.Project), missing, c.From)
		if errors.Is(err, fs.ErrNotExist) {
			in.unpinned = fmt.Errorf("%s lacks %d man pages and libraries, and headers/cache lacks those of %s; "+
				"run make headers first", c.From, len(missing), old.Name)
			return in, c.withoutPages(t, lock, in, old, work, missing)
		}
		if err != nil {
			return nil, err
		}
		if others {
			in.unpinned = fmt.Errorf("%s has headers but no man pages; give FROM=%s, which is pinned, to "+
				"download both", c.From, rel.Name)
		}
		for _, name := range marked {
			in.notes = append(in.notes, fmt.Sprintf("the tables of %s were read from Markdown", name))
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
		}
		in.notes = append(in.notes, fmt.Sprintf("%d man pages and libraries are not in %s; those of %s were used "+
			"instead, so their contents do not describe %s: %s",
			len(missing), c.From, old.Name, rel.Name, strings.Join(missing, " ")))
	}
	in.model, err = c.record(t, lock, work, in.pin)
	return in, err
}

// ownLibraries copies pinned libraries that a directory lacks from the cache of the same release. It returns the files
// that are still missing, and the pinned libraries among them.
func ownLibraries(rel *fetch.Release, missing []string, cache, to string) (rest, kept []string, err error) {
	rest = missing
	for _, p := range rel.Packages {
		for _, f := range p.Libraries {
			if f.Sum == "" || !slices.Contains(rest, f.Name) {
				continue
			}
			rest = slices.DeleteFunc(rest, func(name string) bool { return name == f.Name })
			data, err := bounded.Read(filepath.Join(cache, "lib", f.Name))
			if err != nil || sum(data) != f.Sum {
				kept = append(kept, f.Name)
				continue
			}
			if err := place(to, "lib", f.Name, data); err != nil {
				return nil, nil, err
			}
		}
	}
	return rest, kept, nil
}

// place writes a file below a release's directory.
func place(files, dir, name string, data []byte) error {
	to := filepath.Join(files, dir)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, name), data, 0o644)
}

// standIns copies missing pages and libraries from the cached primary release, where they must match their pins, and
// pins those without a checksum. If the directory has the Markdown of a page that is copied, the Markdown is placed
// next to it. others reports whether a page is pinned with another checksum; marked names the pages present as
// Markdown.
func (in *incoming) standIns(cache string, primary *fetch.Release, missing []string, dir string) (others bool,
	marked []string, err error) {
	lent := map[string]fetch.File{}
	for _, p := range primary.Packages {
		for _, f := range slices.Concat(p.Pages, p.Libraries) {
			if f.Of == "" {
				f.Of = primary.Name
			}
			lent[f.Name] = f
		}
	}
	var diffs []fetch.Diff
	// copyMissing copies a missing file from the primary release. An existing file is kept.
	copyMissing := func(below string, f fetch.File) (fetch.File, error) {
		if !slices.Contains(missing, f.Name) {
			return f, nil
		}
		pinned, ok := lent[f.Name]
		if !ok {
			return f, fmt.Errorf("%s of %s: %w", f.Name, primary.Name, fs.ErrNotExist)
		}
		data, err := bounded.Read(filepath.Join(cache, primary.File(), below, f.Name))
		if err != nil {
			return f, err
		}
		if found := sum(data); found != pinned.Sum {
			diffs = append(diffs, fetch.Diff{File: below + "/" + f.Name, Want: pinned.Sum, Found: found})
			return f, nil
		}
		if f.Sum != pinned.Sum {
			others = others || f.Sum != ""
			f = pinned
		}
		return f, place(in.files, below, f.Name, data)
	}
	rel := *in.pin
	rel.Packages = nil
	for _, p := range in.pin.Packages {
		q := *p
		q.Pages, q.Libraries = slices.Clone(p.Pages), slices.Clone(p.Libraries)
		for i, f := range p.Libraries {
			if q.Libraries[i], err = copyMissing("lib", f); err != nil {
				return false, nil, err
			}
		}
		for i, f := range p.Pages {
			if q.Pages[i], err = copyMissing("man", f); err != nil {
				return false, nil, err
			}
			if q.Pages[i] == f || !slices.Contains(tables.Markdown, f.Name) {
				continue
			}
			text, err := fetch.Markdown(primary.Project, dir, f.Name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return false, nil, err
			}
			marked = append(marked, f.Name)
			md := fetch.File{Name: f.Name + markdown, Sum: sum(text)}
			if err := place(in.files, "man", md.Name, text); err != nil {
				return false, nil, err
			}
			if !slices.Contains(q.Pages, md) { // unless the previous release was also read from a source tree
				q.Pages = append(q.Pages, md)
			}
		}
		for _, k := range q.Links {
			if !slices.Contains(missing, k.Name) {
				continue
			}
			if err := os.Symlink(k.Target, filepath.Join(in.files, "man", k.Name)); err != nil {
				return false, nil, err
			}
		}
		rel.Packages = append(rel.Packages, &q)
	}
	if len(diffs) > 0 {
		return false, nil, &fetch.MismatchError{
			Release: primary.String(), Dir: filepath.Join(cache, primary.File()), Diffs: diffs,
			Hint: "its man pages and libraries are needed in place of those that FROM lacks; run make headers to " +
				"download them again",
		}
	}
	in.pin = &rel
	return others, marked, nil
}

// markdown is the suffix of a man page's Markdown.
const markdown = ".md"

func sum(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

func (c *bumpCmd) withoutPages(t tree, lock *fetch.Lock, in *incoming, old *model.Release,
	work string, missing []string) (err error) {
	name := in.pin.Name
	of := project.Named(c.Project)
	include := filepath.Join(work, in.pin.File(), "include")
	if err := c.complete(include); err != nil {
		return c.incomplete(err)
	}
	files, err := record.WithIncludes(bounded.Dir(include), t.cache(), lock, of)
	if err != nil {
		return err
	}
	if in.model, err = record.Release(of, name, files, include, nil, ""); err != nil {
		return err
	}
	in.model.Tables, in.model.Flags, in.model.Unread = old.Tables, old.Flags, old.Unread
	in.model.Libraries, in.model.StandIns = old.Libraries, map[string]string{}
	for _, file := range missing {
		in.model.StandIns[file] = old.ReleaseOf(file)
	}
	in.notes = append(in.notes, fmt.Sprintf("%d man pages and libraries are not in %s; the tables and symbols of %s "+
		"were used instead, and are not compared", len(missing), c.From, old.Name))
	return nil
}
