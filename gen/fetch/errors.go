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

const mendFrom = "give the files with FROM=<include directory or rdma-core source tree>"

// of is the release that an error is about, where it is about one.
func of(rel string) string {
	if rel == "" {
		return ""
	}
	return "rdma-core " + rel + ": "
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
	return fmt.Sprintf("rdma-core %s: the archive does not carry %s %s, it has %s; %s of that release, or pin "+
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
	fmt.Fprintf(&b, "rdma-core %s: %s is not what headers.lock pins:", e.Release, e.Dir)
	for _, d := range e.Diffs {
		fmt.Fprintf(&b, "\n\t%s\n\t\twanted %s\n\t\tfound  %s", d.File, d.Want, d.Found)
	}
	return b.String() + "\n" + e.Mend
}

// PagesMissingError says that the cache holds every header as pinned but not every man page, because it was filled
// from a source that could not supply them. A caller that reads headers only can go on.
type PagesMissingError struct {
	Release string
	Pages   []string
}

func (e *PagesMissingError) Error() string {
	return fmt.Sprintf("rdma-core %s: the cache has all headers but lacks %d man pages: %s; fetch the release from "+
		"the archive, or %s that has them",
		e.Release, len(e.Pages), strings.Join(e.Pages, ", "), mendFrom)
}
