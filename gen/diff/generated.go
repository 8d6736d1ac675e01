// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// GoAPI generates the packages of a release in memory, with the current rules, and returns their exported identifiers.
// recorded holds all releases; rows is the text of gen/rules/exceptions.txt. Rows, tables and their corrections are
// written for the primary release: for an older one, rows that do not apply are dropped, and so are the tables.
func GoAPI(r *model.Release, recorded rules.Recorded, rows string) (API, []string, error) {
	until := rules.Recorded{}
	others := map[string]*model.Release{}
	for _, other := range recorded {
		if other.Project != r.Project {
			others[other.Project] = other
			until = append(until, other)
		} else if project.CompareReleases(other.Name, r.Name) <= 0 {
			until = append(until, other)
		}
	}
	exceptions, err := rules.ParseExceptions("gen/rules/exceptions.txt", applicable(rows, r, others))
	if err != nil {
		return nil, nil, err
	}
	text, err := r.Encode()
	if err != nil {
		return nil, nil, err
	}
	in := rules.Input{Release: r, Path: rules.FileOf(r) + ".json", Text: text, Recorded: until}
	files := map[string][]byte{}
	var plans []*rules.Plan
	var notes []string
	goos := project.Named(r.Project).GOOS
	for _, p := range rules.All() {
		if p.GOOS() != cmp.Or(goos, "linux") {
			continue
		}
		in := in
		if p.Project() != r.Project {
			if in.Release = others[p.Project()]; in.Release == nil {
				continue // Resolve then fails for the packages that import it
			}
		}
		plan, err := rules.Resolve(bare(p), in, exceptions, plans)
		if err != nil && in.Release != r {
			continue
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("package %s of %s cannot be generated and is not compared: %v", p.Name,
				r.Name, err))
			continue
		}
		plans = append(plans, plan)
		if in.Release != r {
			continue
		}
		printed, err := emit.Package(plan)
		if err != nil {
			return nil, nil, fmt.Errorf("package %s of %s: %w", p.Name, r.Name, err)
		}
		for name, text := range printed {
			files[path.Join(p.Ident(), name)] = bytes.ReplaceAll(text, []byte(bareSuffix), nil)
		}
	}
	api, err := ReadAPI(files)
	return api, notes, err
}

// bareSuffix renames a package while it is generated without its tables, which are assigned to packages by name.
const bareSuffix = "_without_tables"

func bare(p rules.Package) rules.Package {
	p.Name += bareSuffix
	p.Verbs = nil
	p.Imports = slices.Clone(p.Imports)
	for i := range p.Imports {
		p.Imports[i] += bareSuffix
	}
	return p
}

// applicable blanks rows whose argument is an enum that the releases lack. Line numbers do not change.
func applicable(rows string, r *model.Release, others map[string]*model.Release) string {
	have := map[string]bool{}
	for _, r := range append(slices.Collect(maps.Values(others)), r) {
		for _, h := range r.Headers {
			for _, e := range h.Enums {
				have[e.Tag] = true
				have[e.Enumerators[0].Name] = true
			}
		}
	}
	lines := strings.Split(rows, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		action, enum := rules.Action(strings.TrimSpace(cells[1])), strings.TrimSpace(cells[2])
		if (action == rules.Holds || action == rules.Plain && enum != "") && !have[enum] {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// sameHeaders reports whether releases of two projects have the same headers for different systems.
func sameHeaders(a, b *model.Release) bool {
	p, q := project.Named(a.Project), project.Named(b.Project)
	return p.Mark == q.Mark && p.GOOS != q.GOOS
}

// between restricts releases for different systems to what they can have in common: the headers of generated packages
// that both have. It drops man pages and libraries, of which only rdma-core's are recorded.
func between(sides ...*Generation) {
	shared := map[string]int{}
	for _, side := range sides {
		for _, p := range packagesOf(side.Release) {
			shared[p.Ident()]++
		}
	}
	for _, side := range sides {
		some := *side.Release
		some.Headers, some.Libraries, some.Tables, some.Flags = nil, nil, nil, nil
		for _, h := range side.Release.Headers {
			if h.Support || slices.ContainsFunc(packagesOf(side.Release), func(p rules.Package) bool {
				return shared[p.Ident()] == len(sides) && slices.Contains(p.Headers, h.Name)
			}) {
				some.Headers = append(some.Headers, h)
			}
		}
		side.Release, side.Grids, side.Unplanned = &some, nil, nil
		maps.DeleteFunc(side.Go, func(pkg string, _ map[string]string) bool { return shared[pkg] < len(sides) })
	}
}

// packagesOf returns the generated packages of a release's project.
func packagesOf(r *model.Release) []rules.Package {
	return slices.DeleteFunc(rules.All(), func(p rules.Package) bool { return p.Project() != r.Project })
}

// Public returns the Go files of the packages that programs import.
func Public(files emit.Files) map[string][]byte {
	public := map[string][]byte{}
	for name, text := range files {
		if path.Ext(name) == ".go" && path.Dir(name) != witness {
			public[name] = text
		}
	}
	return public
}

// witness is the generated package that only tests import.
const witness = "witness"

// Recorded compares two recorded releases by name. goAPI returns the Go identifiers of a release, like GoAPI. If it is
// nil, identifiers are not compared, and the program does not link the generator.
func Recorded(recorded rules.Recorded, old, new string,
	goAPI func(*model.Release) (API, []string, error)) (*Report, error) {
	j, err := DefaultJudgements()
	if err != nil {
		return nil, err
	}
	var sides [2]Generation
	var notes []string
	for side, name := range []string{old, new} {
		found := recorded.Find(name)
		if len(found) != 1 {
			var have []string
			for _, r := range recorded {
				have = append(have, rules.FileOf(r))
			}
			if len(found) > 1 {
				return nil, fmt.Errorf("several projects have a release %s (recorded: %s)", name,
					strings.Join(have, ", "))
			}
			return nil, fmt.Errorf("release %s is not recorded (recorded: %s)", name, strings.Join(have, ", "))
		}
		var api API
		var why []string
		if goAPI != nil {
			if api, why, err = goAPI(found[0]); err != nil {
				return nil, err
			}
		}
		sides[side] = Planned(found[0], api)
		notes = append(notes, why...)
	}
	if a, b := sides[0].Release, sides[1].Release; a.Project != b.Project {
		if !sameHeaders(a, b) {
			return nil, fmt.Errorf("%s and %s are releases of different projects", a, b)
		}
		between(&sides[0], &sides[1])
	}
	// a package that one side lacks for want of rules is not a change of the other
	for _, pair := range [][2]API{{sides[0].Go, sides[1].Go}, {sides[1].Go, sides[0].Go}} {
		maps.DeleteFunc(pair[0], func(pkg string, _ map[string]string) bool {
			return len(notes) > 0 &&
				pair[1][pkg] == nil
		})
	}
	r := Compare(sides[0], sides[1], j)
	if a, b := sides[0].Release, sides[1].Release; a.Project != b.Project {
		r.Old, r.New, r.Project = a.String(), b.String(), ""
		r.Notes = append(r.Notes, "the releases are for different systems: only headers of packages that both have are "+
			"compared, without man pages and libraries")
	}
	r.Notes = append(r.Notes, notes...)
	return r, nil
}
