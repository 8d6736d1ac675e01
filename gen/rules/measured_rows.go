package rules

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
)

//go:embed measured.txt
var disagreementRows string

const disagreementsFile = "gen/rules/measured.txt"

// Disagreement is a row of gen/rules/measured.txt: why what was measured is not what is documented.
type Disagreement struct {
	Table     string
	Cells     [][]string // measurements, queue pair types, opcodes, and send flags where the table has them
	Statement string     // works or fails
	Reason    string
	Source    string
	At        string
}

// DefaultDisagreements are the rows of gen/rules/measured.txt.
func DefaultDisagreements() ([]*Disagreement, error) {
	return ParseDisagreements(disagreementsFile, disagreementRows)
}

// ParseDisagreements reads rows; the form stands at the top of gen/rules/measured.txt. What they name is checked later.
func ParseDisagreements(name, text string) ([]*Disagreement, error) {
	p := &gridParser{f: &GridFile{}, labels: map[string]*gridLabel{}}
	var rows []*Disagreement
	n := 0
	for line := range strings.Lines(text) {
		n++
		p.at = fmt.Sprintf("%s:%d", name, n)
		line = strings.TrimSpace(line)
		definition, isLabel := strings.CutPrefix(line, "= ")
		c := columns(definition)
		switch {
		case line == "" || line[0] == '#':
		case isLabel && len(c) != 3:
			p.errorf("want = label | reason | source")
		case isLabel:
			p.label(c)
		case len(c) < 6 || len(c) > 7 || slices.Contains(c, ""):
			p.errorf("want table | measurements | queue pair types | opcodes | works or fails | label; with send flags behind the opcodes in a table that has them")
		case c[len(c)-2] != "works" && c[len(c)-2] != "fails":
			p.errorf("unknown statement %q; want works or fails", c[len(c)-2])
		default:
			why := p.use(c[len(c)-1])
			var cells [][]string
			for _, list := range c[1 : len(c)-2] {
				cells = append(cells, names(list))
			}
			rows = append(rows, &Disagreement{
				Table: c[0], Cells: cells, Statement: c[len(c)-2], Reason: why.reason, Source: why.source, At: p.at,
			})
		}
	}
	for _, l := range p.order {
		if !l.used {
			p.errs = append(p.errs, fmt.Errorf("%s: no row uses label %q; delete it", l.at, l.name))
		}
	}
	return rows, errors.Join(p.errs...)
}
