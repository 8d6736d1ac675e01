// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	_ "embed"
	"strings"
)

// Level is the severity of a cause.
type Level string

const (
	Problem Level = "problem" // programs fail
	Advice  Level = "advice"  // programs work, but not as well as they could
)

// cause is a possible fault with its fix. The fix has a %s for each fact that a check adds.
type cause struct {
	id    string
	level Level
	about string
	fix   string
}

//go:embed causes.txt
var causesText string

// causes lists all causes in the order of the file.
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

// causeOf returns the cause with the given ID.
func causeOf(id string) cause {
	for _, c := range causes {
		if c.id == id {
			return c
		}
	}
	panic("doctor: unknown cause " + id)
}
