// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	_ "embed"
	"strings"
)

// Level is how bad a cause is.
type Level string

// Levels.
const (
	Problem Level = "problem" // programs fail
	Advice  Level = "advice"  // they work, but less well than they could
)

// cause is something that can be wrong, and what mends it. The remedy has a %s for each fact that a check adds.
type cause struct {
	id    string
	level Level
	about string
	fix   string
}

//go:embed causes.txt
var causesText string

// causes are all of them, in the order of the file.
var causes = parse(causesText)

func parse(text string) (all []cause) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		c := strings.SplitN(line, " | ", 4)
		all = append(all, cause{c[0], Level(c[1]), c[2], c[3]})
	}
	return all
}

// causeOf finds a cause.
func causeOf(id string) cause {
	for _, c := range causes {
		if c.id == id {
			return c
		}
	}
	panic("doctor: no cause is called " + id) // a check of ours names it: TestFaults sees each
}
