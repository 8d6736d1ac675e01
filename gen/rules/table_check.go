// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"errors"
	"fmt"
	"slices"
)

// FlagCheck is a lookup of several flags at once, in a grid whose last dimension consists of single flags.
type FlagCheck struct {
	Func, Doc string
	Needs     string // name of the value that holds, for each flag, the flags that must be set with it
	// lookup of another grid by the other dimensions; its only value holds the flags that must always be set
	Always string
	always string // Go name of that value
}

// flagChecks rejects FlagChecks that cannot be printed.
func flagChecks(grids []*Grid) error {
	var errs []error
	for _, g := range grids {
		if g == nil || g.Check.Func == "" {
			continue
		}
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("gen/rules/tables/%s.txt: @ check %s: "+format,
				append([]any{g.Name, g.Check.Func}, args...)...))
		}
		flags := g.Dims[len(g.Dims)-1]
		if !flags.Flags {
			fail("the last dimension does not consist of flags")
		}
		mask := func(v ValueDef) bool { return v.Kind == Mask && v.Type == flags.Type }
		if !slices.ContainsFunc(g.Values, func(v ValueDef) bool { return v.Go == g.Check.Needs && mask(v) }) {
			fail("%s is not a mask of %s", g.Check.Needs, flags.Type)
		}
		i := slices.IndexFunc(grids, func(o *Grid) bool { return o != nil && o.Func == g.Check.Always })
		if i < 0 || len(grids[i].Values) != 1 || !mask(grids[i].Values[0]) || len(grids[i].Dims) != len(g.Dims)-1 {
			fail("%s is not a lookup of one mask of %s", g.Check.Always, flags.Type)
			continue
		}
		g.Check.always = grids[i].Values[0].Go
	}
	return errors.Join(errs...)
}

// AlwaysValue returns the Go name of the value of Always.
func (c FlagCheck) AlwaysValue() string { return c.always }
