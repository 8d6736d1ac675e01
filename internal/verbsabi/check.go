// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/witness"
)

// decodeRecorded decodes the recorded models for Linux once, the primary ones and all, since it takes 0.2 s.
var decodeRecorded = sync.OnceValues(func() (r [2]rules.Recorded, err error) {
	r[0], r[1], err = recorded.Releases()
	for i := range r {
		r[i] = slices.DeleteFunc(r[i], func(m *model.Release) bool { return project.Named(m.Project).GOOS != "" })
	}
	return r, err
})

// recordedReleases returns the recorded models. Callers do not change them.
func recordedReleases() (primary, all rules.Recorded, err error) {
	r, err := decodeRecorded()
	return slices.Clip(r[0]), slices.Clip(r[1]), err
}

// Options are the options of the commands. The comments name verbsabi's flags.
type Options struct {
	Dump     bool   // -dump: print the facts of the Go packages as CSV with C names
	Format   string // -format; "" is text
	Write    string // -write: FORMAT=FILE, several with commas between them
	Policy   string // -policy: file with accepted differences
	Baseline string // -baseline: file with the differences of an earlier run
	Record   string // -write-baseline
	Verbose  bool   // -v: also list compatible differences
	Include  string // -I
	CC       string // -cc
	Target   string // -target: a GOARCH
	Release  string // -release: RELEASE or PROJECT=RELEASE, several with commas between them
	Packages string // -pkg: names with commas between them; "" is all
	Only     string // -only: headers, libraries or layouts
	DWARF    string // -dwarf: names with commas between them
	DebugDir string // -debug-dir
	BTF      string // -btf: names with commas between them
	Dirs     string // -L
	Required string // -require
	Cache    string // -cache
	Releases int    // -minimum-releases
	// UAPI holds the types of generated/uapi, which add 2 MB to a program. Without them, only their model is compared.
	UAPI    []witness.Package
	Program string // a finished program to check instead of the headers
	Host    string // -host: its root file system; "" is this machine's
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
	if err := o.checkParts(); err != nil {
		return false, err
	}
	if err := o.checkProgram(); err != nil {
		return false, err
	}
	if o.Format == "" {
		o.Format = "text"
	}
	if formats[o.Format] == nil {
		return false, unknownFormat(o.Format)
	}
	if err := checkFiles(List(o.Write)); err != nil {
		return false, err
	}
	var policy *policy
	var base *baseline
	var err error
	if o.Policy != "" {
		if policy, err = readPolicy(o.Policy); err != nil {
			return false, err
		}
	}
	if o.Baseline != "" {
		if base, err = readBaseline(o.Baseline); err != nil {
			return false, err
		}
	}
	packages, err := Packages(List(o.Packages)...)
	if err != nil {
		return false, err
	}
	primary, all, err := recordedReleases()
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
		DWARF: splitList(o.DWARF), DebugDir: o.DebugDir, BTF: splitList(o.BTF),
	}
	if o.Program != "" {
		return runProgram(q, o, policy, base, stdout)
	}
	if o.Target == runtime.GOARCH {
		q.Go = slices.Concat(witness.All(), o.UAPI)
	}
	if len(q.CC) == 0 && q.Only != Libraries && len(q.DWARF)+len(q.BTF) == 0 {
		if q.CC, err = FindCompiler(o.Target); err != nil {
			return false, err
		}
	}
	answer, err := Ask(ctx, q)
	if err != nil {
		return false, err
	}
	stale, err := o.accept(answer, policy, base)
	if err != nil {
		return false, err
	}
	err = answer.write(stdout, o.Format, o.Verbose)
	if err == nil && o.Format == "text" && len(q.Go) == 0 && q.Only != Libraries {
		_, err = fmt.Fprintf(stdout,
			"this program was compiled for %s: the Go packages for %s were not measured, only the assertions that they contain "+
				"were compared\n",
			runtime.GOARCH, o.Target)
	}
	err = errors.Join(err, answer.writeFiles(List(o.Write), o.Verbose), stale, answer.Require(List(o.Required)))
	return answer.Verdict != Incompatible, err
}

// checkParts rejects options that contradict each other.
func (o Options) checkParts() error {
	debug := o.DWARF != "" || o.BTF != ""
	switch Part(o.Only) {
	case "":
	case Headers:
		if debug {
			return errors.New("-dwarf and -btf replace the headers; use -only layouts")
		}
	case Libraries:
		if debug {
			return errors.New("-dwarf and -btf have no effect with -only libraries; use -only layouts")
		}
	case Layouts:
		if !debug {
			return errors.New("-only layouts needs -dwarf or -btf")
		}
	default:
		return fmt.Errorf("-only must be headers, libraries or layouts, not %q", o.Only)
	}
	switch {
	case debug && o.Include != "":
		return errors.New("-dwarf and -btf replace the headers; omit -I")
	case debug && o.Cache != "":
		return errors.New("-cache compares headers; omit -dwarf and -btf")
	case o.DebugDir != "" && o.DWARF == "":
		return errors.New("-debug-dir needs -dwarf")
	}
	return nil
}

// checkProgram rejects options that have no effect when a program is checked.
func (o Options) checkProgram() error {
	switch {
	case o.Program == "" && o.Host != "":
		return errors.New("-host needs a program to check; name its file")
	case o.Program != "" && (o.Dump || o.Include+o.CC+o.Packages+o.Only+o.Dirs+o.Cache+o.DWARF+o.BTF != ""):
		return errors.New("a program is checked against the libraries of a host; omit the options for headers, compilers, " +
			"debug information, packages and library directories")
	}
	return nil
}

// splitList splits file names at commas.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// accept writes the baseline, and applies the policy and an earlier baseline. stale reports obsolete rows of the
// policy.
func (o Options) accept(answer *Answer, policy *policy, base *baseline) (stale, err error) {
	if answer.Findings = answer.findings(); policy != nil {
		stale = policy.apply(answer.Findings, time.Now())
	}
	if o.Record != "" {
		if err := newBaseline(answer, o.Target).write(o.Record); err != nil {
			return nil, fmt.Errorf("writing the baseline: %w", err)
		}
	}
	if base != nil {
		if answer.Change, err = base.apply(answer, o.Target); err != nil {
			return nil, err
		}
	}
	answer.judge()
	return stale, nil
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
