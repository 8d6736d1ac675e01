// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/goverbs/goverbs/gen/bounded"
)

// baseline is a recorded answer. Later runs accept its differences and report only new ones.
type baseline struct {
	Target    string            `json:"target"`      // GOARCH
	Packages  map[string]string `json:"go_packages"` // releases from which they were generated, by project
	Headers   map[string]string `json:"headers"`     // releases of the installed headers, by project
	Libraries map[string]string `json:"libraries"`   // releases of the installed libraries, by name
	Findings  []string          `json:"findings"`    // IDs
	Digest    string            `json:"digest"`      // SHA-256 of the fields above, as JSON
}

// newBaseline returns the baseline of an answer.
func newBaseline(a *Answer, target string) *baseline {
	b := &baseline{Target: target, Packages: map[string]string{}, Headers: map[string]string{},
		Libraries: map[string]string{}, Findings: []string{}}
	for _, h := range a.Headers {
		b.Packages[h.Project], b.Headers[h.Project] = h.Primary, h.Release
	}
	for _, l := range a.Libraries {
		b.Libraries[l.Name] = l.Release
	}
	for _, f := range a.Findings {
		b.Findings = append(b.Findings, f.ID)
	}
	slices.Sort(b.Findings)
	b.Findings = slices.Compact(b.Findings)
	b.Digest = b.digest()
	return b
}

// digest returns the digest of all other fields.
func (b *baseline) digest() string {
	rest := *b
	rest.Digest = ""
	text, err := json.Marshal(&rest) // with sorted keys
	if err != nil {
		panic(err) // strings always encode
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// write replaces a file with the baseline.
func (b *baseline) write(name string) error {
	text, err := json.MarshalIndent(b, "", "\t")
	if err != nil {
		return err
	}
	return replaceFile(name, append(text, '\n'))
}

// replaceFile writes a new file and renames it, so that the old file survives a failure.
func replaceFile(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// readBaseline reads a baseline and checks its digest.
func readBaseline(name string) (*baseline, error) {
	text, err := bounded.Read(name)
	if err != nil {
		return nil, fmt.Errorf("reading the baseline: %w; write it with -write-baseline", err)
	}
	b := &baseline{}
	if err := json.Unmarshal(text, b); err != nil {
		return nil, fmt.Errorf("the baseline %s is not valid: %w; write it again with -write-baseline", name, err)
	}
	if b.Digest != b.digest() {
		return nil, fmt.Errorf("the baseline %s was edited: its digest does not match; write it again with "+
			"-write-baseline", name)
	}
	return b, nil
}

// Change is the comparison of an answer with a baseline.
type Change struct {
	Releases []string `json:"releases"` // "headers of rdma-core: 44.0 in the baseline, 50.0 now"
	New      []string `json:"new"`      // IDs of findings that the baseline lacks
	Gone     []string `json:"gone"`     // IDs of findings that only the baseline has
}

// apply accepts the findings in the baseline and returns the changes since it was recorded.
func (b *baseline) apply(a *Answer, target string) (*Change, error) {
	if b.Target != target {
		return nil, fmt.Errorf("the baseline is for %s, and this check is for %s", b.Target, target)
	}
	now := newBaseline(a, target)
	c := &Change{Releases: []string{}, New: []string{}, Gone: []string{}}
	c.compare("Go packages of", b.Packages, now.Packages)
	c.compare("headers of", b.Headers, now.Headers)
	c.compare("", b.Libraries, now.Libraries)
	for i := range a.Findings {
		f := &a.Findings[i]
		_, known := slices.BinarySearch(b.Findings, f.ID)
		if !known {
			c.New = append(c.New, f.ID)
		} else if !f.Compatible && f.Accepted == "" {
			f.Accepted = "in the baseline"
		}
	}
	for _, id := range b.Findings {
		if _, found := slices.BinarySearch(now.Findings, id); !found {
			c.Gone = append(c.Gone, id)
		}
	}
	return c, nil
}

// compare appends the entries of two maps of releases that differ.
func (c *Change) compare(what string, before, now map[string]string) {
	if what != "" {
		what += " "
	}
	all := maps.Clone(before)
	maps.Copy(all, now)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := before[name]
		is, has := now[name]
		switch {
		case !had:
			c.Releases = append(c.Releases, fmt.Sprintf("%s%s: not in the baseline, %s now", what, name, orUnknown(is)))
		case !has:
			c.Releases = append(c.Releases, fmt.Sprintf("%s%s: %s in the baseline, not checked now", what, name,
				orUnknown(was)))
		case was != is:
			c.Releases = append(c.Releases, fmt.Sprintf("%s%s: %s in the baseline, %s now", what, name, orUnknown(was),
				orUnknown(is)))
		}
	}
}

func orUnknown(release string) string {
	if release == "" {
		return "unknown release"
	}
	return release
}
