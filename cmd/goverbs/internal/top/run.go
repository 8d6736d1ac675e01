// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/untrusted"
)

// Loop configures the updates.
type Loop struct {
	Options
	Once     bool
	Interval time.Duration
	Count    int    // number of reports; 0: unlimited
	Since    string // file with an earlier report to compare with
	JSON     bool
}

// Run prints reports until the context ends: on a terminal in place, otherwise one after the other, as JSON one per
// line. A single report is one document.
func (l *Loop) Run(ctx context.Context, host *resources.Host, w io.Writer) error {
	base, err := l.baseline(ctx)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	var before *resources.Snapshot
	for n := 1; ; n++ {
		now := host.Read()
		r, err := New(now, before, base, &l.Options)
		if err != nil {
			return err
		}
		if l.Once {
			return page.Print(w, r, l.JSON)
		}
		if err := l.printUpdate(w, r, n > 1); err != nil {
			return err
		}
		if base == nil {
			base = BaselineOf(now)
		}
		if before = now; n == l.Count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.Interval):
		}
	}
}

// baseline reads the Since file. It may be a pipe, so reading ends with the context.
func (l *Loop) baseline(ctx context.Context) (Baseline, error) {
	if l.Since == "" {
		return nil, nil
	}
	var b Baseline
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		b, err = readReport(l.Since)
	}()
	select {
	case <-done:
		return b, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Limits of a report file.
const (
	maxBytes   = 16 << 20
	maxObjects = 1 << 18 // JSON objects: two per process
)

func readReport(name string) (Baseline, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return nil, err
	}
	var r struct{ Processes untrusted.List[Process] }
	if bytes.Count(text, []byte{'{'}) > maxObjects {
		err = fmt.Errorf("more than %d objects", maxObjects)
	} else {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&r)
	}
	if err != nil || r.Processes == nil {
		return nil, fmt.Errorf("%q: not a report of goverbs --json top --once: %v", name, err)
	}
	b := Baseline{}
	for _, p := range r.Processes {
		b[p.key()] = p
	}
	return b, nil
}

// printUpdate prints one of several reports.
func (l *Loop) printUpdate(w io.Writer, r *Report, more bool) error {
	if l.JSON {
		return json.NewEncoder(w).Encode(r)
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s\n", r.Time.Format(time.DateTime))
	if err := page.Print(&text, r, false); err != nil {
		return err
	}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil {
			_, err = io.WriteString(w, screen(text.String(), width, height))
			return err
		}
	}
	if more {
		fmt.Fprintln(w)
	}
	_, err := text.WriteTo(w)
	return err
}

// screen returns text that replaces the contents of the terminal, cut to its size.
func screen(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if most := max(height-1, 1); len(lines) > most {
		lines = append(lines[:most-1:most-1], fmt.Sprintf("… %d more lines", len(lines)-most+1))
	}
	for i, line := range lines {
		for utf8.RuneCountInString(line) > width {
			_, size := utf8.DecodeLastRuneInString(line)
			line = line[:len(line)-size]
		}
		lines[i] = line + "\x1b[K"
	}
	return "\x1b[H" + strings.Join(lines, "\n") + "\n\x1b[J"
}
