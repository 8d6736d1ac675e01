// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/bounded"
)

// exception is a row of a policy: incompatible findings that are accepted until a date.
type exception struct {
	line    int
	pattern string // path.Match pattern for Finding.ID
	until   time.Time
	reason  string
	used    bool
}

// policy is a list of exceptions.
type policy struct {
	name string
	rows []exception
}

// policyDate is the format of the last day of an exception.
const policyDate = time.DateOnly

// readPolicy reads a policy file. Each row is an exception with three columns, separated by tabs: the ID of the
// finding, in which * matches any text without a slash, the last day on which it is accepted, and the reason. Lines
// that start with # are comments.
func readPolicy(name string) (*policy, error) {
	text, err := bounded.Read(name)
	if err != nil {
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	p := &policy{name: name}
	var errs []error
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimRight(line, "\r ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		row, err := parseException(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", name, i+1, err))
			continue
		}
		row.line = i + 1
		p.rows = append(p.rows, row)
	}
	return p, errors.Join(errs...)
}

func parseException(line string) (exception, error) {
	columns := strings.SplitN(line, "\t", 3)
	if len(columns) != 3 || strings.TrimSpace(columns[2]) == "" {
		return exception{}, errors.New("want three columns separated by tabs: difference, last day, reason")
	}
	e := exception{pattern: strings.TrimSpace(columns[0]), reason: strings.TrimSpace(columns[2])}
	if _, err := path.Match(e.pattern, ""); err != nil || e.pattern == "" {
		return exception{}, fmt.Errorf("the pattern %q is not valid", e.pattern)
	}
	var err error
	if e.until, err = time.Parse(policyDate, strings.TrimSpace(columns[1])); err != nil {
		return exception{}, fmt.Errorf("the last day %q is not a date such as 2027-06-30", columns[1])
	}
	return e, nil
}

// apply accepts the findings that match the policy. It returns an error for each row that has expired or matches
// nothing.
func (p *policy) apply(findings []Finding, now time.Time) error {
	for i := range findings {
		f := &findings[i]
		if f.Compatible {
			continue
		}
		for j := range p.rows {
			row := &p.rows[j]
			if ok, _ := path.Match(row.pattern, f.ID); !ok {
				continue
			}
			row.used = true
			if !row.expired(now) && f.Accepted == "" {
				f.Accepted = fmt.Sprintf("%s (until %s)", row.reason, row.until.Format(policyDate))
			}
		}
	}
	var errs []error
	for _, row := range p.rows {
		switch {
		case !row.used:
			errs = append(errs, fmt.Errorf("%s:%d: %q matches no incompatible difference; delete the row", p.name,
				row.line, row.pattern))
		case row.expired(now):
			errs = append(errs, fmt.Errorf("%s:%d: %q expired on %s", p.name, row.line, row.pattern,
				row.until.Format(policyDate)))
		}
	}
	return errors.Join(errs...)
}

// expired reports whether the last day is over, in UTC.
func (e *exception) expired(now time.Time) bool { return !now.Before(e.until.AddDate(0, 0, 1)) }
