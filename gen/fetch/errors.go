// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotCached means that the release is not in the cache.
	ErrNotCached = errors.New("not in the cache")
	// ErrNoApt means that the machine lacks a tool to query the Debian archive or to unpack its packages.
	ErrNoApt = errors.New("no apt on this machine")
	// ErrNoArchive means that the Debian archive is not among the machine's apt sources.
	ErrNoArchive = errors.New("no Debian archive among this machine's apt sources")
)

const hintFrom = "give the files with FROM=<include directory or source tree>"

// of returns the prefix of an error about a release, or "".
func of(rel string) string {
	if rel == "" {
		return ""
	}
	return rel + ": "
}

func hint(rel string) string {
	if rel == "" {
		return "use a machine that has them"
	}
	return hintFrom
}

// GoneError means that the archive no longer has a release.
type GoneError struct {
	Release, Package string
	Want             string // the pinned version
	Have             string // versions found in the suites
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("%s: the archive has %[4]s instead of %[2]s %[3]s; %[5]s of that release, or pin "+
		"another release",
		e.Release, e.Package, e.Want, e.Have, hintFrom)
}

// ArchiveError means that the archive could not be queried: no network, a missing key, a broken mirror.
type ArchiveError struct {
	Release string
	Step    string // attempted step
	Output  string // last lines of the tool's output
	Err     error

	all string // all lines
}

func (e *ArchiveError) Error() string {
	s := fmt.Sprintf("%s%s: %v", of(e.Release), e.Step, e.Err)
	if e.Output != "" {
		s += "\n\t" + strings.ReplaceAll(e.Output, "\n", "\n\t")
	}
	return s + "\nfix the network or the apt sources, or " + hint(e.Release)
}

func (e *ArchiveError) Unwrap() error { return e.Err }

// Diff is a file that differs from its pin. Want and Found are checksums, or <missing>, <link to X>, <not pinned>.
type Diff struct{ File, Want, Found string }

// MismatchError lists the files that differ from their pins.
type MismatchError struct {
	Release string
	Dir     string // directory of the files
	Diffs   []Diff
	Hint    string
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s differs from headers.lock:", e.Release, e.Dir)
	for _, d := range e.Diffs {
		fmt.Fprintf(&b, "\n\t%s\n\t\twanted %s\n\t\tfound  %s", d.File, d.Want, d.Found)
	}
	return b.String() + "\n" + e.Hint
}

// IncompleteError means that the cache holds every pinned header but not every man page or library, since its source
// lacked them. A caller that reads only headers can continue.
type IncompleteError struct {
	Release          string
	Pages, Libraries []string
}

func (e *IncompleteError) Error() string {
	var lacks []string
	if n := len(e.Pages); n > 0 {
		lacks = append(lacks, fmt.Sprintf("%d man pages: %s", n, strings.Join(e.Pages, ", ")))
	}
	if len(e.Libraries) > 0 {
		lacks = append(lacks, strings.Join(e.Libraries, " and "))
	}
	return fmt.Sprintf("%s: the cache has all headers but lacks %s; fetch the release from the archive, or %s that "+
		"has them", e.Release, strings.Join(lacks, ", and "), hintFrom)
}

// incomplete returns the error for missing man pages and libraries of a release.
func incomplete(rel *Release, missing []string) *IncompleteError {
	e := &IncompleteError{Release: rel.String()}
	for _, name := range missing {
		if libraryName.MatchString(name) {
			e.Libraries = append(e.Libraries, name)
		} else {
			e.Pages = append(e.Pages, name)
		}
	}
	return e
}
