// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// usageError reports wrong usage that kong cannot detect. The exit status is the same.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// check rejects wrong usage before anything is read or downloaded.
func (c *bumpCmd) check() error {
	switch {
	case c.From == "":
		return usageError{errNoFrom}
	case (c.Version == "") != (len(c.Suite) == 0):
		return usagef("--version and --suite must be given together")
	}
	if _, err := projectNamed(c.Project); err != nil {
		return err
	}
	if err := fetch.CheckName(c.Release, ""); err != nil {
		return usagef("--release: %w", err)
	}
	if err := fetch.CheckName("", c.Version, c.Suite...); err != nil {
		return usagef("--version and --suite: %w", err)
	}
	if c.Release != "" && c.Version != "" && releaseOfVersion(c.Version) != c.Release {
		return usagef("--version %s belongs to release %s, not to --release %s", c.Version, releaseOfVersion(c.Version),
			c.Release)
	}
	if isDir(c.From) {
		return nil
	}
	version, suite, archive := strings.Cut(c.From, "@")
	if archive {
		name := releaseOfVersion(version)
		err := fetch.CheckName(name, version, suite)
		if err == nil && name == "" {
			err = errors.New("no version")
		}
		if err != nil {
			return usagef("FROM=%s: want VERSION@SUITE, such as 66.0-1@sid, or a directory: %w", c.From, err)
		}
	}
	if c.Release != "" || c.Version != "" {
		return usagef("--release, --version and --suite need a directory as FROM, not %s",
			c.From)
	}
	return nil
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// record records a release from a cache.
func (c *bumpCmd) record(t tree, lock *fetch.Lock, cache string, rel *fetch.Release) (*model.Release, error) {
	err := c.complete(filepath.Join(cache, rel.File(), "include"))
	if primary := lock.Primary(c.Project); err != nil && c.From == rel.Name && primary != nil {
		return nil, fmt.Errorf("%w: an older release cannot become the primary one; compare the two with go run "+
			"./gen/cmd/gen diff %s %s", err, rel.Name, primary.Name)
	}
	if err != nil {
		return nil, c.incomplete(err)
	}
	return t.record(cache, lock, rel)
}

// complete rejects headers that lack files of generated packages.
func (c *bumpCmd) complete(include string) error {
	var lacks []string
	for _, name := range rules.PublicHeaders(c.Project) {
		if _, err := os.Stat(filepath.Join(include, name)); errors.Is(err, fs.ErrNotExist) {
			lacks = append(lacks, name)
		}
	}
	if lacks == nil {
		return nil
	}
	return fmt.Errorf("%s lacks %s, needed for generated/", c.From, strings.Join(lacks, ", "))
}

// incomplete adds to an error of complete which files a directory needs.
func (c *bumpCmd) incomplete(err error) error {
	var packages []string
	for _, p := range project.Named(c.Project).Packages {
		if len(p.Headers) > 0 {
			packages = append(packages, p.Name)
		}
	}
	return fmt.Errorf("%w; give the files that %s install, or a complete source tree", err,
		strings.Join(packages, " and "))
}

// inFrom rewrites an error about files in the temporary directory work so that it names the same files in FROM.
func (c *bumpCmd) inFrom(err error, work string) error {
	if err == nil || !strings.Contains(err.Error(), work) {
		return err
	}
	below := regexp.MustCompile(regexp.QuoteMeta(work) + `/[a-z0-9.]+((?:/[A-Za-z0-9_.-]*[A-Za-z0-9_-])*)`)
	text := below.ReplaceAllStringFunc(err.Error(), func(file string) string {
		rest := strings.TrimPrefix(below.FindStringSubmatch(file)[1], "/")
		if !isDir(c.From) {
			return path.Join(c.From, rest)
		}
		header, isHeader := strings.CutPrefix(rest, "include/")
		if real := fetch.Locate(c.From, header); isHeader && real != "" {
			return real
		}
		if slices.Contains([]string{"", "include", "man", "lib"}, rest) {
			return c.From
		}
		return path.Join(c.From, rest)
	})
	return rewritten{text, err}
}

// rewritten is an error with another text.
type rewritten struct {
	text string
	err  error
}

func (r rewritten) Error() string { return r.text }
func (r rewritten) Unwrap() error { return r.err }
