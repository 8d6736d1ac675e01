// SPDX-License-Identifier: BSD-2-Clause

package grids

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/goverbs/goverbs/gen/rules"
)

// Write writes tables as text, JSON or HTML.
func Write(w io.Writer, format string, grids []*rules.Grid) error {
	return map[string]func(io.Writer, []*rules.Grid) error{"text": Text, "json": JSON,
		"html": HTML}[format](w, grids)
}

// Text writes tables for a terminal.
func Text(w io.Writer, grids []*rules.Grid) error {
	var b strings.Builder
	for i, g := range grids {
		if i > 0 {
			b.WriteString("\n\n")
		}
		v := viewGrid(g, false)
		fmt.Fprintf(&b, "%s: %s (%s)\n\n", v.Name, v.Question, v.Source)
		for _, m := range v.Matrices {
			if m.Title != "" {
				b.WriteString(m.Title + "\n")
			}
			rows := [][]string{append([]string{m.Corner}, m.Columns...)}
			for _, r := range m.Rows {
				row := []string{r.Name}
				for _, c := range r.Cells {
					row = append(row, c.Mark+footnote(c.Note))
				}
				rows = append(rows, row)
			}
			layRows(&b, rows)
			b.WriteString("\n")
		}
		b.WriteString(v.Legend + "\n")
		if v.Values != nil {
			b.WriteString("\n")
			layRows(&b, append([][]string{v.Values.Columns}, v.Values.Rows...))
		}
		if len(v.Notes) > 0 {
			b.WriteString("\n")
		}
		for n, text := range v.Notes {
			fmt.Fprintf(&b, "[%d] %s\n", n+1, text)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func footnote(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("[%d]", n)
}

// layRows aligns rows in columns, without trailing blanks.
func layRows(b *strings.Builder, rows [][]string) {
	width := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += cell + strings.Repeat(" ", width[i]+2-utf8.RuneCountInString(cell))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

type jsonTable struct {
	Name     string      `json:"name"`
	Question string      `json:"question"`
	Pages    []string    `json:"pages,omitempty"`
	Release  string      `json:"release"`
	Go       string      `json:"go"` // the lookup: "ibv.PostSendValidity"
	Dims     []jsonDim   `json:"dimensions"`
	Values   []jsonValue `json:"values,omitempty"`
	Cells    []jsonCell  `json:"cells"`
}

type jsonDim struct {
	Name  string   `json:"name"`
	What  string   `json:"what"`
	Type  string   `json:"type"`
	Items []string `json:"items"`
}

type jsonValue struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Type  string `json:"type,omitempty"`
	About string `json:"about"`
}

type jsonCell struct {
	At        map[string]string   `json:"at"` // dimension → item
	Answer    string              `json:"answer"`
	Condition string              `json:"condition,omitempty"`
	Reason    string              `json:"reason"`
	Source    string              `json:"source"`
	Note      string              `json:"note,omitempty"`
	Values    map[string][]string `json:"values,omitempty"`
}

// JSON writes tables as JSON, with all facts of every cell.
func JSON(w io.Writer, grids []*rules.Grid) error {
	tables := []jsonTable{}
	for _, g := range grids {
		t := jsonTable{Name: g.Name, Question: g.Question, Pages: g.Pages, Release: g.Release,
			Go: g.Package + "." + g.Func}
		for _, d := range g.Dims {
			t.Dims = append(t.Dims, jsonDim{Name: d.Param, What: d.What, Type: d.Type, Items: d.Names})
		}
		for _, d := range g.Values {
			t.Values = append(t.Values, jsonValue{Name: d.Go, Kind: string(d.Kind), Type: d.Type, About: d.Doc})
		}
		for i := range g.Cells {
			c := &g.Cells[i]
			out := jsonCell{At: map[string]string{}, Answer: Answer(c.Answer), Condition: c.Condition,
				Reason: c.Reason, Source: c.Source, Note: c.Note}
			for d, name := range g.Combination(i) {
				out.At[g.Dims[d].Param] = name
			}
			for d, v := range c.Values {
				if v != nil {
					if out.Values == nil {
						out.Values = map[string][]string{}
					}
					out.Values[g.Values[d].Go] = v
				}
			}
			t.Cells = append(t.Cells, out)
		}
		tables = append(tables, t)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	return enc.Encode(tables)
}
