// SPDX-License-Identifier: BSD-2-Clause

// Package explain says what a number or a name of verbs means, from the generated tables.
package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
)

// Explanation is about one thing. In JSON it is an object with kind, name, and a member for each fact.
type Explanation struct {
	Kind  string // "completion status", "event", "operation", "transition"
	Name  string
	Facts []Fact
}

// Fact is a part of an explanation.
type Fact struct {
	Name string // a word or two: "likely causes"
	Text string
}

// fact adds a fact, unless it is empty.
func (e *Explanation) fact(name, text string) {
	if text != "" {
		e.Facts = append(e.Facts, Fact{name, text})
	}
}

// MarshalJSON keeps the order of the facts. Their names have underscores for spaces.
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

// WriteText writes the facts below each other.
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

// All are explanations of what has several meanings.
type All []*Explanation

// WriteText writes one after the other.
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

// Of explains words: a completion status, an event, an operation on a type of queue pair, a transition between two
// states, a function of the C libraries, or an errno of one. Names may be in lower case, and but for functions without
// the prefix of the C library; a number is a status, or where no status has it or a verb stands beside it an errno. A
// word that means several things gives several explanations. The error says what can be asked.
func Of(words []string) (All, error) {
	words = strings.Fields(strings.Join(words, " ")) // a shell may have been told to keep them together
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
		return nil, fmt.Errorf("nothing here is called %.*q: ask for a completion status (12, RETRY_EXC_ERR), an "+
			"event (PORT_ERR, ADDR_ERROR), an operation on a type of queue pair (RDMA_READ UC, also without one), a "+
			"transition (RC INIT RTR), a type of queue pair (UD), a function of C (ibv_reg_mr), or an errno of one "+
			"(ibv_reg_mr ENOMEM)", most, strings.Join(words, " "))
	}
	return all, nil
}
