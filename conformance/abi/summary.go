package abi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/goverbs/goverbs/gen/model"
)

// Summary is what the C witness says about every recorded release on every target, as far as this machine can tell.
type Summary struct {
	Reports []*Report
	Skipped []Skipped
}

// Skipped is a release on a target that could not be checked, and why.
type Skipped struct {
	Release, Target string
	Why             error
}

// Summarize runs the C witness for every model on every target, against the headers in cacheDir/RELEASE/include.
func Summarize(ctx context.Context, cacheDir string, releases []*model.Release) (*Summary, error) {
	s := &Summary{}
	compilers := map[string]Compiler{}
	unable := map[string]error{}
	for _, r := range releases {
		include := filepath.Join(cacheDir, r.Name, "include")
		_, headers := os.Stat(filepath.Join(include, "infiniband", "verbs.h"))
		for _, target := range r.Targets {
			if headers != nil {
				s.Skipped = append(s.Skipped, Skipped{r.Name, target, fmt.Errorf("%w: %w; bring them with make headers", ErrNoHeaders, headers)})
				continue
			}
			if compilers[target] == nil && unable[target] == nil {
				compilers[target], unable[target] = completeCompiler(ctx, target)
			}
			if err := unable[target]; err != nil {
				s.Skipped = append(s.Skipped, Skipped{r.Name, target, err})
				continue
			}
			report, err := CWitness(ctx, compilers[target], include, r, target)
			if err != nil {
				return nil, fmt.Errorf("rdma-core %s: %w", r.Name, err)
			}
			s.Reports = append(s.Reports, report)
		}
	}
	return s, nil
}

// completeCompiler finds a compiler that has the C library's headers too; Debian packages those of some targets apart.
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
		return nil, fmt.Errorf("%w that is complete: %s lacks the C library's headers; install the libc6-dev package for %s", ErrNoCompiler, cc, target)
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

// Print writes one line for each release and target: counts and mismatches, or why it was not checked.
func (s *Summary) Print(w io.Writer) error {
	p := printer{w: w}
	for _, r := range s.Reports {
		p.line("%s", r)
		for _, m := range r.Mismatches {
			p.line("  %s", m)
		}
	}
	for _, skipped := range s.Skipped {
		p.line("rdma-core %-5s %-8s not checked: %v", skipped.Release, skipped.Target, skipped.Why)
	}
	if len(s.Reports) == 0 {
		return errors.Join(p.err, errors.New("nothing could be checked"))
	}
	return p.err
}
