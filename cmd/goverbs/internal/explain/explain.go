// SPDX-License-Identifier: BSD-2-Clause

// Package explain explains numbers and names of verbs from the generated tables.
package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
)

// Explanation explains one term. In JSON it is an object with kind, name, and a member for each fact.
type Explanation struct {
	Kind  string // "completion status", "event", "operation", "transition"
	Name  string
	Facts []Fact
}

type Fact struct {
	Name string // a word or two: "likely causes"
	Text string
}

// fact adds a fact unless its text is empty.
func (e *Explanation) fact(name, text string) {
	if text != "" {
		e.Facts = append(e.Facts, Fact{name, text})
	}
}

// MarshalJSON keeps the order of the facts and replaces spaces in their names with underscores.
func (e *Explanation) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, f := range append([]Fact{{"kind", e.Kind}, {"name", e.Name}}, e.Facts...) {
		text, err := json.Marshal(f.Text)
		if err != nil {
			return nil, err
		}
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		b.WriteByte(separator)
		fmt.Fprintf(&b, "%q:%s", strings.ReplaceAll(f.Name, " ", "_"), text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// WriteText writes one fact per line.
func (e *Explanation) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", e.Name, e.Kind); err != nil {
		return err
	}
	indent := 0
	for _, f := range e.Facts {
		indent = max(indent, len(f.Name)+4)
	}
	for _, f := range e.Facts {
		if err := page.Paragraph(w, "  "+f.Name, f.Text, indent); err != nil {
			return err
		}
	}
	return nil
}

// All are the explanations of a term with several meanings.
type All []*Explanation

// WriteText writes the explanations.
func (a All) WriteText(w io.Writer) error {
	for i, e := range a {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := e.WriteText(w); err != nil {
			return err
		}
	}
	return nil
}

// Of explains a completion status, an event, an operation on a queue pair type, a transition between two states, a C
// function, or an errno of one. Names may be lower case and, other than functions, without their prefix. A number is a
// status, or an errno if no status has it or a verb precedes it. The error lists what can be explained.
func Of(words []string) (All, error) {
	words = strings.Fields(strings.Join(words, " ")) // quoted arguments contain several words
	var all All
	for _, try := range []func([]string) *Explanation{status, event, connection, transition, operation, queuePair,
		function} {
		if e := try(words); e != nil {
			all = append(all, e)
		}
	}
	if len(words) > 0 && (all == nil || !isNumber(words[0])) {
		all = append(all, errnos(words)...)
	}
	if all == nil {
		const most = 100 // characters
		return nil, fmt.Errorf("unknown term %.*q; give a completion status (12, RETRY_EXC_ERR), an event (PORT_ERR, "+
			"ADDR_ERROR), an operation (RDMA_READ, RDMA_READ UC), a state transition (RC INIT RTR), a queue pair type "+
			"(UD), a C function (ibv_reg_mr), or an errno of one (ibv_reg_mr ENOMEM)", most, strings.Join(words, " "))
	}
	return all, nil
}
