// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed symbols.txt
var symbolsText string

// Actions of rows in symbols.txt.
const (
	unbound    = "unbound"    // declared, but not exported for programs
	undeclared = "undeclared" // exported, but not declared for programs
)

type symbolRow struct{ action, why, at string }

// symbolRows reads rows of the form: name | action | why.
func symbolRows(name, text string) (map[string]symbolRow, error) {
	rows := map[string]symbolRow{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := fmt.Sprintf("%s:%d", name, n)
		cells := strings.Split(line, "|")
		if len(cells) != 3 {
			return nil, fmt.Errorf("%s: %d columns; want name | action | why", at, len(cells))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		row := symbolRow{cells[1], cells[2], at}
		if cells[0] == "" || row.why == "" || row.action != unbound && row.action != undeclared {
			return nil, fmt.Errorf("%s: want a name, unbound or undeclared, and a reason", at)
		}
		if old, ok := rows[cells[0]]; ok {
			return nil, fmt.Errorf("%s: duplicate row for %s, first at %s", at, cells[0], old.at)
		}
		rows[cells[0]] = row
	}
	return rows, nil
}
