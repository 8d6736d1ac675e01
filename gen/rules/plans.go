// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Plans plans the given packages from models, one for each project. unread lists upstream headers that no package
// covers.
func Plans(inputs []Input, packages []Package, exceptions *Exceptions) (plans []*Plan, unread []Exception, err error) {
	of := map[string]Input{}
	for _, in := range inputs {
		some, err := CheckUnread(in, exceptions)
		if err != nil {
			return nil, nil, err
		}
		unread = append(unread, some...)
		of[in.Release.Project] = in
	}
	for _, p := range packages {
		in, ok := of[p.Project()]
		if !ok {
			return nil, nil, fmt.Errorf("package %s: headers.lock pins no release of the project that installs %s",
				p.Name, p.Headers[0])
		}
		plan, err := Resolve(p, in, exceptions, plans)
		if err != nil {
			return nil, nil, err
		}
		plans = append(plans, plan)
	}
	return plans, unread, Finish(exceptions)
}

// Tables returns the validity tables of plans with the given names, or all.
func Tables(plans []*Plan, names ...string) ([]*Grid, error) {
	var chosen []*Grid
	var have []string
	for _, plan := range plans {
		for _, g := range plan.Grids {
			have = append(have, g.Name)
			if len(names) == 0 || slices.Contains(names, g.Name) {
				chosen = append(chosen, g)
			}
		}
	}
	for _, name := range names {
		if !slices.Contains(have, name) {
			return nil, fmt.Errorf("no table %s; there are %s", name, strings.Join(have, ", "))
		}
	}
	return chosen, nil
}
