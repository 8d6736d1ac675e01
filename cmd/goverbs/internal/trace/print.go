// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// plain removes control characters other than newlines, so that a file cannot control the terminal.
type plain struct{ w io.Writer }

func (p plain) Write(b []byte) (int, error) {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return unicode.ReplacementChar
		}
		return r
	}, string(b))
	if _, err := io.WriteString(p.w, text); err != nil {
		return 0, err
	}
	return len(b), nil
}

// WriteText writes a line for each event.
func (t *Trace) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w) // traces can be large
	p := plain{b}
	fmt.Fprintf(p, "%s, process %d, %s\n", t.Head.Program, t.Head.PID, t.Head.Time)
	for _, e := range t.Events {
		if _, err := fmt.Fprintf(p, "%12.3f µs  %s\n", float64(e.T)/1e3, e); err != nil {
			return err
		}
	}
	return b.Flush()
}

// String formats the event as a line.
func (e *Event) String() string {
	var b strings.Builder
	b.WriteString(e.Verb)
	if e.QP != nil {
		fmt.Fprintf(&b, " QP %#x", *e.QP)
	}
	for _, wr := range e.WRs {
		fmt.Fprintf(&b, " [%d", wr.ID)
		if wr.Op != "" {
			fmt.Fprintf(&b, " %s", wr.Op)
		}
		fmt.Fprintf(&b, " %d bytes", wr.bytes())
		if wr.RKey != 0 {
			fmt.Fprintf(&b, " at 0x%x, key %#x", uint64(wr.Remote), wr.RKey)
		}
		b.WriteString("]")
	}
	for _, wc := range e.WCs {
		fmt.Fprintf(&b, " [%d %s %s QP %#x %d bytes]", wc.ID, wc.Status, wc.Op, wc.QP, wc.Bytes)
	}
	for _, fact := range e.facts() {
		b.WriteString(" " + fact)
	}
	fmt.Fprintf(&b, " (%.3f µs)", float64(e.D)/1e3)
	if e.Errno != 0 {
		fmt.Fprintf(&b, " = %d, %s", e.Errno, e.Error)
	}
	return b.String()
}

// facts formats the remaining members of an event as name=value.
func (e *Event) facts() (all []string) {
	copied := *e
	copied.T, copied.D, copied.N, copied.Verb, copied.Errno, copied.Error, copied.QP, copied.WRs, copied.WCs = 0, 0, 0, "", 0, "", nil, nil, nil
	text, err := json.Marshal(copied)
	if err != nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for name := ""; ; {
		token, err := d.Token()
		if err != nil {
			return all
		}
		switch v := token.(type) {
		case json.Delim:
		case string, json.Number:
			if name == "" {
				name = fmt.Sprint(v)
			} else {
				if name != "t" {
					all = append(all, fmt.Sprintf("%s=%v", name, v))
				}
				name = ""
			}
		}
	}
}

// WriteLines writes the events as JSON lines, with failures merged into their calls.
func (t *Trace) WriteLines(w io.Writer) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	for _, event := range append([]*Event{&t.Head}, t.Events...) {
		if err := e.Encode(event); err != nil {
			return err
		}
	}
	return b.Flush()
}

// chromeEvent is an event of the Trace Event Format, which about:tracing and Perfetto read.
type chromeEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat"`
	Phase    string         `json:"ph"`
	Time     float64        `json:"ts"` // microseconds
	Duration float64        `json:"dur,omitempty"`
	PID      int            `json:"pid"`
	TID      uint32         `json:"tid"`
	ID       string         `json:"id,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// WriteChrome writes the trace for about:tracing: a row per queue pair, and a span from each signaled request to its
// completion.
func (t *Trace) WriteChrome(w io.Writer) error {
	var all []chromeEvent
	for _, e := range t.Events {
		row := uint32(0)
		if e.QP != nil {
			row = *e.QP
		}
		category := "control"
		if e.WRs != nil || e.WCs != nil {
			category = "data"
		}
		all = append(all, chromeEvent{Name: e.Verb, Category: category, Phase: "X", Time: float64(e.T) / 1e3,
			Duration: float64(max(e.D, 1)) / 1e3, PID: t.Head.PID, TID: row, Args: map[string]any{"what": e.String()}})
		span := func(phase string, qp uint32, id uint64, name string, at uint64) {
			all = append(all, chromeEvent{Name: name, Category: "request", Phase: phase, Time: float64(at) / 1e3,
				PID: t.Head.PID, TID: qp, ID: fmt.Sprintf("%#x-%d", qp, id)})
		}
		for _, wr := range e.WRs {
			if wr.has("SIGNALED") {
				span("b", row, wr.ID, wr.Op, e.T)
			}
		}
		for _, wc := range e.WCs {
			if !strings.HasPrefix(wc.Op, "RECV") {
				span("e", wc.QP, wc.ID, wc.Op, e.T+e.D)
			}
		}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(map[string]any{"traceEvents": all, "displayTimeUnit": "ns"})
}
