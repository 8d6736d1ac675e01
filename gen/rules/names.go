// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	_ "embed"
	"go/token"
	"strings"

	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed initialisms.txt
var initialismsText string

// initialisms maps the words of initialisms.txt to their spelling.
var initialisms = rows.Read("gen/rules/initialisms.txt", initialismsText,
	rows.Form{Want: "word or word=Spelling", Least: 1, Most: 2, Each: true, Key: []int{0}})

// spelled returns the Go spelling of a word, if a row defines it.
func spelled(word string) (string, bool) {
	row := initialisms.Lookup(word)
	switch {
	case row == nil:
		return "", false
	case len(row.Columns) == 1:
		return strings.ToUpper(word), true
	}
	return row.Columns[1], true
}

// strip removes the package's own prefix and the underscores that C puts before private names.
func (p Package) strip(c string) string {
	c = strings.TrimLeft(c, "_")
	for _, prefix := range p.Prefixes {
		if rest, ok := strings.CutPrefix(c, prefix); ok && rest != "" {
			return rest
		}
	}
	return c
}

// TypeName returns the Go name of a type: ibv_send_wr → SendWR.
func (p Package) TypeName(tag string) string { return camel(p.strip(tag)) }

// ConstName returns the Go name of a constant, which keeps its C spelling: IBV_WR_SEND → WR_SEND.
func (p Package) ConstName(name string) string {
	name = p.strip(name)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return "N" + name
	}
	if first := name[0]; first >= 'a' && first <= 'z' {
		return camel(name)
	}
	return name
}

// FieldName returns the Go name of a member: num_sge → NumSGE.
func FieldName(c string) string { return camel(strings.TrimLeft(c, "_")) }

// camel converts snake_case to an exported Go identifier.
func camel(c string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(c, "_") {
		if word == "" {
			continue
		}
		lower := strings.ToLower(word)
		if s, ok := spelled(lower); ok {
			b.WriteString(s)
			continue
		}
		if word == strings.ToUpper(word) {
			word = lower // a word in upper case, as in ABI_placeholder1
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	name := b.String()
	if !token.IsIdentifier(name) || !token.IsExported(name) {
		name = "X" + name
	}
	return name
}
