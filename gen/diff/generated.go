// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// GoAPI generates the packages of a release, in memory and under today's rules, and reads what they export. recorded
// are the releases up to it, rows the text of gen/rules/exceptions.txt. Those rows and the errata of tables are
// written for the primary release: a row that an older one has no use for is left out, and so are the tables. What
// cannot be generated all the same is not compared, and the notes say why.
func GoAPI(r *model.Release, recorded rules.Recorded, rows string) (API, []string, error) {
	exceptions, err := rules.ParseExceptions("gen/rules/exceptions.txt", applicable(rows, r))
	if err != nil {
		return nil, nil, err
	}
	text, err := r.Encode()
	if err != nil {
		return nil, nil, err
	}
	in := rules.Input{Release: r, Path: r.Name + ".json", Text: text}
	files := map[string][]byte{}
	var plans []*rules.Plan
	var notes []string
	for _, p := range rules.Packages {
		plan, err := rules.Resolve(bare(p), in, recorded, exceptions, plans)
		if err != nil {
			notes = append(notes, fmt.Sprintf("package %s of %s cannot be generated and is not compared: %v", p.Name,
				r.Name, err))
			continue
		}
		plans = append(plans, plan)
		printed, err := emit.Package(plan)
		if err != nil {
			return nil, nil, fmt.Errorf("package %s of %s: %w", p.Name, r.Name, err)
		}
		for name, text := range printed {
			files[path.Join(p.Name, name)] = bytes.ReplaceAll(text, []byte(bareSuffix), nil)
		}
	}
	api, err := ReadAPI(files)
	return api, notes, err
}

// bareSuffix sets the name of a package apart for as long as it is generated: tables belong to packages by name.
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

// applicable blanks the rows whose argument is an enum that the release does not have, and keeps the numbers of the
// lines.
func applicable(rows string, r *model.Release) string {
	have := map[string]bool{}
	for _, h := range r.Headers {
		for _, e := range h.Enums {
			have[e.Tag] = true
			have[e.Enumerators[0].Name] = true
		}
	}
	lines := strings.Split(rows, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "|")
		if len(cells) == 4 && strings.TrimSpace(cells[1]) == string(rules.Holds) && !have[strings.TrimSpace(cells[2])] {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// Public are the files of the packages that people import among all that were generated: all but the proof's own.
func Public(files emit.Files) map[string][]byte {
	public := map[string][]byte{}
	for name, text := range files {
		if path.Dir(name) != witness {
			public[name] = text
		}
	}
	return public
}

// witness is the generated package that only the proof imports.
const witness = "witness"

// Recorded compares two recorded releases by name, Go identifiers included. rows are the text of
// gen/rules/exceptions.txt.
func Recorded(recorded rules.Recorded, old, new, rows string) (*Report, error) {
	j, err := DefaultJudgements()
	if err != nil {
		return nil, err
	}
	var sides [2]Generation
	var notes []string
	for side, name := range []string{old, new} {
		at := slices.IndexFunc(recorded, func(r *model.Release) bool { return r.Name == name })
		if at < 0 {
			var have []string
			for _, r := range recorded {
				have = append(have, r.Name)
			}
			return nil, fmt.Errorf("release %s is not recorded (recorded: %s)", name, strings.Join(have, ", "))
		}
		api, why, err := GoAPI(recorded[at], recorded[:at+1], rows)
		if err != nil {
			return nil, err
		}
		sides[side] = Planned(recorded[at], api)
		notes = append(notes, why...)
	}
	// A package that one side lacks for want of rules is no news about the other.
	for _, pair := range [][2]API{{sides[0].Go, sides[1].Go}, {sides[1].Go, sides[0].Go}} {
		maps.DeleteFunc(pair[0], func(pkg string, _ map[string]string) bool {
			return len(notes) > 0 &&
				pair[1][pkg] == nil
		})
	}
	r := Compare(sides[0], sides[1], j)
	r.Notes = append(r.Notes, notes...)
	return r, nil
}
