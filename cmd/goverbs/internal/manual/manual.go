// SPDX-License-Identifier: BSD-2-Clause

// Package manual writes a command's page for man(1) from the same declarations that its --help prints.
package manual

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// Page is what a page has beside the command's declarations.
type Page struct {
	Version, Date string // Date is YYYY-MM-DD, or "" where nobody knows it
	// Sections stand behind the commands: a heading in capitals, and paragraphs.
	Sections []Section
	SeeAlso  []string // "ibv_devinfo(1)"
}

// Section is a part of a page.
type Section struct {
	Title string
	Items []Item
}

// Item is a term and what it is.
type Item struct{ Term, Text string }

// Write writes the page of a command and of all its subcommands, in the macros man(7).
func Write(to io.Writer, app *kong.Application, page Page) error {
	w := &roff{Writer: bufio.NewWriter(to)}
	fmt.Fprintf(w, ".TH %s 1 %q %q \"User Commands\"\n", strings.ToUpper(app.Name), page.Date,
		app.Name+" "+strings.ReplaceAll(page.Version, `\`, ""))
	w.macro("SH", "NAME")
	w.text(app.Name + " - " + firstLower(strings.TrimSuffix(app.Help, ".")))
	w.macro("SH", "SYNOPSIS")
	w.macro("B", app.Name)
	w.macro("RI", "[", "OPTION", "]...")
	w.macro("I", "COMMAND")
	w.macro("RI", "[", "ARGUMENT", "]...")
	w.macro("SH", "OPTIONS")
	w.flags(app.Flags)
	w.macro("SH", "COMMANDS")
	w.commands(app.Node)
	for _, s := range page.Sections {
		w.macro("SH", s.Title)
		for _, item := range s.Items {
			w.item(item.Term, item.Text)
		}
	}
	if len(page.SeeAlso) > 0 {
		w.macro("SH", "SEE ALSO")
		for i, name := range page.SeeAlso {
			title, section, _ := strings.Cut(strings.TrimSuffix(name, ")"), "(")
			end := ","
			if i+1 == len(page.SeeAlso) {
				end = ""
			}
			w.macro("BR", title, "("+section+")"+end)
		}
	}
	return w.Flush()
}

func firstLower(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// roff is a writer of man(7), which keeps the first error.
type roff struct{ *bufio.Writer }

// commands writes all commands below one.
func (w *roff) commands(parent *kong.Node) {
	for _, c := range parent.Children {
		if c.Hidden {
			continue
		}
		if len(c.Children) == 0 {
			w.macro("SS", usage(c))
			w.text(c.Help)
			if c.Detail != "" {
				w.macro("PP")
				w.text(c.Detail)
			}
			for _, a := range c.Positional {
				w.item(strings.ToUpper(a.Name), a.Help)
			}
			w.flags(c.Flags)
		}
		w.commands(c)
	}
}

// usage is a command with its arguments.
func usage(c *kong.Node) string {
	words := []string{c.FullPath()}
	for _, a := range c.Positional {
		word := strings.ToUpper(a.Name)
		if a.IsCumulative() {
			word += "..."
		}
		if !a.Required {
			word = "[" + word + "]"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func (w *roff) flags(all []*kong.Flag) {
	for _, f := range all {
		if f.Hidden {
			continue
		}
		term := "--" + f.Name
		if f.Short != 0 {
			term = "-" + string(f.Short) + ", " + term
		}
		if !f.IsBool() {
			term += "=" + strings.Trim(f.FormatPlaceHolder(), `"`)
		}
		w.item(term, f.Help)
	}
}

// item is a term and, indented below it, its text.
func (w *roff) item(term, text string) {
	w.macro("TP")
	w.macro("B", term)
	w.text(text)
}

// macro is a line that begins with a macro, whose arguments are quoted.
func (w *roff) macro(name string, args ...string) {
	fmt.Fprintf(w, ".%s", name)
	for _, a := range args {
		fmt.Fprintf(w, ` "%s"`, strings.ReplaceAll(escape(a), `"`, `\(dq`))
	}
	fmt.Fprintln(w)
}

// text is a paragraph, a sentence a line. No line of it is taken for a macro.
func (w *roff) text(s string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		text := escape(strings.Join(strings.Fields(paragraph), " "))
		for line := range strings.SplitSeq(strings.ReplaceAll(text, ". ", ".\n"), "\n") {
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				line = `\&` + line
			}
			fmt.Fprintln(w, line)
		}
	}
}

// escape keeps roff from reading characters as its own, and from making typographic ones of a minus sign or an accent.
var escape = strings.NewReplacer(`\`, `\e`, "-", `\-`, "^", `\(ha`, "`", `\(ga`, "~", `\(ti`, "µ", `\(mc`, "→",
	`\(->`, "≥", `\(>=`, "≤", `\(<=`, "…", `\&...`, "×", `\(mu`).Replace
