// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
)

// mirror is a mirror of the Debian archive in the machine's configuration.
type mirror struct {
	uri   string
	trust string // lines of a .sources file with the keys that the machine trusts for the mirror
}

func (m mirror) String() string {
	if u, err := url.Parse(m.uri); err == nil {
		return u.Redacted()
	}
	return m.uri
}

// debianSuite matches suites of the archive, without suffixes such as -updates.
var debianSuite = regexp.MustCompile(`^(stable|oldstable|oldoldstable|testing|unstable|sid|` +
	`bullseye|bookworm|trixie|forky|duke)$`)

// mirrors finds the Debian archive among the machine's apt sources. If the lists have been updated, Origin and Label
// identify it. Otherwise suites and address do, and there may be several candidates.
func (a *apt) mirrors(ctx context.Context, suites []string) ([]mirror, error) {
	// without --no-release-info, apt omits sources whose lists were never updated
	out, err := a.targets(ctx, "--no-release-info")
	if err != nil {
		return nil, err
	}
	labelled, err := a.targets(ctx)
	if err != nil {
		return nil, err
	}
	targets := append(stanzas(out), stanzas(labelled)...)
	best, points := []mirror{}, 0
	seen := map[string]bool{}
	for _, t := range targets {
		uri := strings.TrimSuffix(t["Repo-URI"], "/")
		if uri == "" || seen[uri] {
			continue
		}
		seen[uri] = true
		n := similarity(targets, t["Repo-URI"], suites)
		if n == 0 || n < points {
			continue
		}
		if n > points {
			best, points = nil, n
		}
		best = append(best, mirror{uri: t["Repo-URI"], trust: trustOf(targets, t["Repo-URI"])})
	}
	if len(best) == 0 {
		return nil, fmt.Errorf("%s%w; %s", of(a.rel), ErrNoArchive, hint(a.rel))
	}
	return best, nil
}

// targets returns the output of apt-get indextargets, which programs share like lists.
func (a *apt) targets(ctx context.Context, flags ...string) (string, error) {
	root := os.Getenv(EnvLists)
	file := filepath.Join(root, "targets"+strings.Join(flags, ""))
	if root != "" {
		if out, err := os.ReadFile(file); err == nil {
			return string(out), nil
		}
	}
	out, err := a.run(ctx, "reading this machine's apt sources", "", "apt-get",
		append([]string{"indextargets"}, flags...)...)
	if err != nil || root == "" {
		return out, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	return out, publish(root, file, out)
}

// publish writes a file that appears atomically. dir is on the same file system.
func publish(dir, file, text string) error {
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// similarity scores how well a repository matches the Debian archive, from 0 for no match to 100 for a matching Release
// file.
func similarity(targets []map[string]string, uri string, suites []string) int {
	points := 0
	for _, t := range targets {
		if t["Repo-URI"] != uri || t["Component"] != "main" || t["Identifier"] != "Packages" {
			continue
		}
		if t["Origin"] == "Debian" && t["Label"] == "Debian" {
			return 100
		}
		if t["Origin"] != "" || t["Label"] != "" {
			return 0 // security updates, separate backports, or another vendor
		}
		if s := t["Release"]; debianSuite.MatchString(s) || slices.Contains(suites, s) {
			points = max(points, 10)
		}
	}
	if points == 0 {
		return 0
	}
	if u, err := url.Parse(uri); err == nil && slices.Contains(strings.Split(u.Path, "/"), "debian") {
		points += 5
	}
	// only the archive itself has -updates suites
	if slices.ContainsFunc(targets, func(t map[string]string) bool {
		return t["Repo-URI"] == uri && strings.HasSuffix(t["Release"], "-updates")
	}) {
		points += 3
	}
	return points
}

// trustOf copies the key settings of the machine's entry for a source. apt reports the file of an entry but not its
// Signed-By.
func trustOf(targets []map[string]string, uri string) string {
	for _, t := range targets {
		if t["Repo-URI"] != uri || t["Component"] != "main" {
			continue
		}
		file := t["Sourcesentry"]
		if i := strings.LastIndexByte(file, ':'); i >= 0 {
			file = file[:i]
		}
		data, err := bounded.Read(file)
		if err != nil {
			continue // apt then uses the keys that it trusts for every source
		}
		if strings.HasSuffix(file, ".sources") {
			return trustOfStanza(string(data), uri)
		}
		return trustOfLine(string(data), uri)
	}
	return ""
}

// trustFields are the copied fields, in both source formats.
var trustFields = []string{"Signed-By", "Trusted", "Check-Valid-Until", "Check-Date"}

func trustOfStanza(text, uri string) string {
	for _, s := range stanzas(text) {
		if !slices.ContainsFunc(strings.Fields(s["URIs"]), func(u string) bool { return sameURI(u, uri) }) ||
			s["Enabled"] == "no" {
			continue
		}
		trust := ""
		for _, f := range trustFields {
			if s[f] != "" {
				trust += f + ": " + s[f] + "\n" // a key block keeps its line breaks and indentation
			}
		}
		return trust
	}
	return ""
}

var oneLine = regexp.MustCompile(`(?m)^[ \t]*deb[ \t]+(?:\[([^\]\n]*)\][ \t]*)?(\S+)[ \t]`)

func trustOfLine(text, uri string) string {
	for _, m := range oneLine.FindAllStringSubmatch(text, -1) {
		if !sameURI(m[2], uri) {
			continue
		}
		trust := ""
		for _, option := range strings.Fields(m[1]) {
			name, value, _ := strings.Cut(option, "=")
			if i := slices.IndexFunc(trustFields, func(f string) bool { return strings.EqualFold(f, name) }); i >= 0 {
				trust += trustFields[i] + ": " + value + "\n"
			}
		}
		return trust
	}
	return ""
}

func sameURI(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// stanzas parses blocks of "Name: value" lines in apt's format, with continuation lines.
func stanzas(text string) []map[string]string {
	var all []map[string]string
	var now map[string]string
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "":
			now = nil
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			if now != nil && last != "" {
				now[last] += "\n" + line
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			if now == nil {
				now = map[string]string{}
				all = append(all, now)
			}
			last = fieldName(name)
			now[last] = strings.TrimSpace(value)
		}
	}
	return all
}

// fieldName normalizes the case of a field name. apt ignores the case.
func fieldName(name string) string {
	for _, known := range append([]string{"URIs", "Enabled"}, trustFields...) {
		if strings.EqualFold(name, known) {
			return known
		}
	}
	return name
}
