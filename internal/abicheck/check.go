// SPDX-License-Identifier: BSD-2-Clause

package abicheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

// Options are the options of the commands. The comments name abicheck's flags.
type Options struct {
	Dump     bool   // -dump: print the facts of the Go packages as CSV with C names
	JSON     bool   // -json
	Verbose  bool   // -v: also list compatible differences
	Include  string // -I
	CC       string // -cc
	Target   string // -target: a GOARCH
	Release  string // -release: RELEASE or PROJECT=RELEASE, several with commas between them
	Packages string // -pkg: names with commas between them; "" is all
	Only     string // -only: headers or libraries
	Dirs     string // -L
	Required string // -require
	Cache    string // -cache
	Releases int    // -minimum-releases
}

// PackageNames returns the names of the packages that can be checked.
func PackageNames() []string {
	var all []string
	for _, p := range witness.All() {
		all = append(all, p.Name)
	}
	return all
}

// List splits names at commas.
func List(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// Run checks what the options request, and reports whether everything is compatible.
func Run(ctx context.Context, o Options, stdout io.Writer) (bool, error) {
	if o.Only != "" && o.Only != string(Headers) && o.Only != string(Libraries) {
		return false, fmt.Errorf("-only must be headers or libraries, not %q", o.Only)
	}
	packages, err := Packages(List(o.Packages)...)
	if err != nil {
		return false, err
	}
	primary, all, err := recorded.Releases()
	switch {
	case err != nil:
		return false, err
	case o.Cache != "":
		return checkCache(ctx, o, primary, all, stdout)
	case o.Dump:
		return true, dump(o, packages, stdout)
	}
	q := Question{
		Packages: packages, Include: o.Include, CC: strings.Fields(o.CC), Target: o.Target,
		Release: releases(o.Release), Only: Part(o.Only),
		LibraryDirs: filepath.SplitList(o.Dirs), Primary: primary, Recorded: all,
	}
	if o.Target == runtime.GOARCH {
		q.Go = witness.All()
	}
	if len(q.CC) == 0 && q.Only != Libraries {
		if q.CC, err = FindCompiler(o.Target); err != nil {
			return false, err
		}
	}
	answer, err := Ask(ctx, q)
	if err != nil {
		return false, err
	}
	if o.JSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "\t")
		err = enc.Encode(answer)
	} else if err = answer.Print(stdout, o.Verbose); err == nil && len(q.Go) == 0 && q.Only != Libraries {
		_, err = fmt.Fprintf(stdout,
			"this program was compiled for %s: the Go packages for %s were not measured, only the assertions that they contain "+
				"were compared\n",
			runtime.GOARCH, o.Target)
	}
	return answer.Verdict != Incompatible, errors.Join(err, answer.Require(List(o.Required)))
}

// releases parses the value of -release: RELEASE or PROJECT=RELEASE.
func releases(named string) map[string]string {
	all := map[string]string{}
	for _, one := range List(named) {
		if of, release, ok := strings.Cut(one, "="); ok {
			all[of] = release
		} else {
			all[project.All[0].Name] = one
		}
	}
	return all
}

// checkCache checks the recorded models against the headers of a cache.
func checkCache(ctx context.Context, o Options, primary, recorded rules.Recorded, stdout io.Writer) (bool, error) {
	s, err := Summarize(ctx, o.Cache, primary, recorded)
	if err != nil {
		return false, err
	}
	return s.Mismatches() == 0, errors.Join(s.Print(stdout), s.Require(List(o.Required), o.Releases))
}

// dump prints the facts of the Go packages.
func dump(o Options, packages []rules.Package, stdout io.Writer) error {
	if o.Target != runtime.GOARCH {
		return fmt.Errorf("-dump measures the Go types of this program, which was compiled for %s; build it with "+
			"GOARCH=%s and run it there",
			runtime.GOARCH, o.Target)
	}
	var chosen []witness.Package
	for _, p := range witness.All() {
		if slices.ContainsFunc(packages, func(q rules.Package) bool { return q.Name == p.Name }) {
			chosen = append(chosen, p)
		}
	}
	measured, err := Measure(chosen...)
	if err != nil {
		return err
	}
	return measured.Dump(stdout)
}
