// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// Summary contains the results of the C witness for every recorded release, on every target that this machine can
// check.
type Summary struct {
	Reports []*Report
	Skipped []Skipped
}

// Skipped is a release on a target that could not be checked, and the reason.
type Skipped struct {
	Release, Target string
	Why             error
}

// Summarize runs the C witness for every model and target against the headers in cacheDir, a few at a time. Headers of
// another project come from that project's primary release.
func Summarize(ctx context.Context, cacheDir string, primary, releases rules.Recorded) (*Summary, error) {
	s := &Summary{}
	compilers := map[string]Compiler{}
	unable := map[string]error{}
	var todo []func() (*Report, error)
	for _, r := range releases {
		of := project.Named(r.Project)
		include := []string{filepath.Join(cacheDir, of.File(r.Name), "include")}
		headers := hasHeaders(include[0], of)
		if included := primary.Of(of.Includes); headers == nil && len(included) > 0 {
			include = append(include, filepath.Join(cacheDir, rules.FileOf(included[0]), "include"))
			headers = hasHeaders(include[1], project.Named(of.Includes))
		}
		for _, target := range r.Targets {
			if headers != nil {
				s.Skipped = append(s.Skipped,
					Skipped{r.String(), target, fmt.Errorf("%w; run make headers", headers)})
				continue
			}
			if compilers[target] == nil && unable[target] == nil {
				compilers[target], unable[target] = completeCompiler(ctx, target)
			}
			if err := unable[target]; err != nil {
				s.Skipped = append(s.Skipped, Skipped{r.String(), target, err})
				continue
			}
			todo = append(todo, func() (*Report, error) {
				dirs := strings.Join(include, string(filepath.ListSeparator))
				report, err := CWitness(ctx, compilers[target], dirs, r, target)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", r, err)
				}
				return report, nil
			})
		}
	}
	s.Reports = make([]*Report, len(todo))
	errs := make([]error, len(todo))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for i, do := range todo {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			s.Reports[i], errs[i] = do()
		})
	}
	wg.Wait()
	return s, errors.Join(errs...)
}

// Require returns an error that names the targets that were checked against fewer releases than least.
func (s *Summary) Require(targets []string, least int) error {
	checked, why := map[string]int{}, map[string]error{}
	for _, r := range s.Reports {
		checked[r.Target]++
	}
	for _, skipped := range s.Skipped {
		why[skipped.Target] = skipped.Why
	}
	var missing []error
	for _, target := range targets {
		n := checked[target]
		if n >= least {
			continue
		}
		if why[target] == nil {
			why[target] = errors.New("no model read")
		}
		if n == 0 {
			missing = append(missing, fmt.Errorf("%s is required and was not checked: %w", target, why[target]))
			continue
		}
		missing = append(missing, fmt.Errorf("%s was checked against %d releases, fewer than the %d required: %w",
			target, n, least, why[target]))
	}
	return errors.Join(missing...)
}

// completeCompiler finds a compiler with the C library's headers, which Debian packages separately for some targets.
func completeCompiler(ctx context.Context, target string) (Compiler, error) {
	cc, err := FindCompiler(target)
	if err != nil {
		return nil, err
	}
	out, err := cc.run(ctx, "", "#include <pthread.h>\n#include <linux/types.h>\n")
	if err != nil {
		return nil, err
	}
	if _, err := readDiagnostics(out); err != nil {
		return nil, fmt.Errorf("%w: %s lacks the C library's headers; install the libc6-dev "+
			"package for %s",
			ErrNoCompiler, cc, target)
	}
	return cc, nil
}

// Mismatches counts the mismatches of all reports.
func (s *Summary) Mismatches() int {
	n := 0
	for _, r := range s.Reports {
		n += len(r.Mismatches)
	}
	return n
}

// Print writes one line for each release and target: counts and mismatches, or the reason why it was not checked.
func (s *Summary) Print(w io.Writer) error {
	p := printer{w: w}
	for _, r := range s.Reports {
		p.line("%s", r)
		for _, m := range r.Mismatches {
			p.line("  %s", m)
		}
	}
	for i, skipped := range s.Skipped { // one line per reason
		names := []string{}
		for j, other := range s.Skipped {
			if other.Why.Error() != skipped.Why.Error() {
				continue
			}
			if j < i {
				break
			}
			names = append(names, other.Release+" "+other.Target)
		}
		if len(names) > 0 {
			p.line("not checked: %s: %v", strings.Join(names, ", "), skipped.Why)
		}
	}
	p.line("C witness: %d of %d releases × targets checked, %d mismatches", len(s.Reports), len(s.Reports)+len(s.Skipped),
		s.Mismatches())
	if len(s.Reports) == 0 {
		return errors.Join(p.err, errors.New("nothing could be checked"))
	}
	return p.err
}
