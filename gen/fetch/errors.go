// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotCached says that nothing of the release is in the cache.
	ErrNotCached = errors.New("not in the cache")
	// ErrNoApt says that the machine lacks a tool that asks the Debian archive or unpacks its packages.
	ErrNoApt = errors.New("no apt on this machine")
	// ErrNoArchive says that no source of the machine's apt configuration is the Debian archive.
	ErrNoArchive = errors.New("no Debian archive among this machine's apt sources")
)

const mendFrom = "give the files with FROM=<include directory or source tree>"

// of is the release that an error is about, where it is about one.
func of(rel string) string {
	if rel == "" {
		return ""
	}
	return rel + ": "
}

func mend(rel string) string {
	if rel == "" {
		return "use a machine that has them"
	}
	return mendFrom
}

// GoneError says that the archive answered, but does not carry a release.
type GoneError struct {
	Release, Package string
	Want             string // the pinned version
	Have             string // what the suites have instead
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("%s: the archive does not carry %s %s, it has %s; %s of that release, or pin "+
		"another release",
		e.Release, e.Package, e.Want, e.Have, mendFrom)
}

// ArchiveError says that the archive could not be asked: no network, a missing key, a broken mirror.
type ArchiveError struct {
	Release string
	Step    string // what was tried
	Output  string // the last lines that the tool wrote
	Err     error

	all string // all lines
}

func (e *ArchiveError) Error() string {
	s := fmt.Sprintf("%s%s: %v", of(e.Release), e.Step, e.Err)
	if e.Output != "" {
		s += "\n\t" + strings.ReplaceAll(e.Output, "\n", "\n\t")
	}
	return s + "\nmend the network or the apt sources, or " + mend(e.Release)
}

func (e *ArchiveError) Unwrap() error { return e.Err }

// Diff is one file that is not as pinned. Want and Found are sums, or words in angle brackets: <missing>, <link to
// X>, <not pinned>.
type Diff struct{ File, Want, Found string }

// MismatchError names every file that is not as pinned.
type MismatchError struct {
	Release string
	Dir     string // where the files were read
	Diffs   []Diff
	Mend    string
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s is not what headers.lock pins:", e.Release, e.Dir)
	for _, d := range e.Diffs {
		fmt.Fprintf(&b, "\n\t%s\n\t\twanted %s\n\t\tfound  %s", d.File, d.Want, d.Found)
	}
	return b.String() + "\n" + e.Mend
}

// IncompleteError says that the cache holds every header as pinned but not every man page or library, because it was
// filled from a source that could not supply them. A caller that reads headers only can go on.
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
		"has them", e.Release, strings.Join(lacks, ", and "), mendFrom)
}

// incomplete is the error for man pages and libraries that are missing from a release.
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
