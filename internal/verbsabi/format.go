// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goverbs/goverbs/internal/printable"
)

// formats are the output formats by name.
var formats = map[string]func(a *Answer, w io.Writer, verbose bool) error{
	"text":     (*Answer).Print,
	"json":     func(a *Answer, w io.Writer, _ bool) error { return writeJSON(w, a) },
	"sarif":    func(a *Answer, w io.Writer, _ bool) error { return writeJSON(w, a.sarif()) },
	"junit":    func(a *Answer, w io.Writer, _ bool) error { return a.writeJUnit(w) },
	"github":   (*Answer).writeGitHub,
	"markdown": (*Answer).writeMarkdown,
}

// Formats returns the names of the output formats.
func Formats() []string { return slices.Sorted(maps.Keys(formats)) }

// write writes the answer in a format.
func (a *Answer) write(w io.Writer, format string, verbose bool) error {
	write := formats[format]
	if write == nil {
		return unknownFormat(format)
	}
	return write(a, w, verbose)
}

func unknownFormat(format string) error {
	return fmt.Errorf("unknown format %q; use one of %s", format, strings.Join(Formats(), ", "))
}

// writeFiles writes the answer to files, each named FORMAT=FILE.
func (a *Answer) writeFiles(named []string, verbose bool) error {
	for _, one := range named {
		format, name, _ := strings.Cut(one, "=")
		var text bytes.Buffer
		if err := a.write(&text, format, verbose); err != nil {
			return err
		}
		if err := replaceFile(name, text.Bytes()); err != nil {
			return fmt.Errorf("writing the %s: %w", format, err)
		}
	}
	return nil
}

// checkFiles checks the arguments of writeFiles.
func checkFiles(named []string) error {
	for _, one := range named {
		format, name, ok := strings.Cut(one, "=")
		switch {
		case !ok || name == "":
			return fmt.Errorf("%q names no file; use FORMAT=FILE", one)
		case formats[format] == nil:
			return unknownFormat(format)
		}
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "\t")
	return enc.Encode(v)
}

// Types of SARIF 2.1.0. Unused fields are omitted.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string       `json:"id"`
		ShortDescription sarifMessage `json:"shortDescription"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Notifications []sarifNotification `json:"toolExecutionNotifications,omitempty"`
	}
	sarifNotification struct {
		Level   string       `json:"level"`
		Message sarifMessage `json:"message"`
	}
	sarifResult struct {
		RuleID       string             `json:"ruleId"`
		RuleIndex    int                `json:"ruleIndex"`
		Level        string             `json:"level"`
		Message      sarifMessage       `json:"message"`
		Locations    []sarifLocation    `json:"locations"`
		Fingerprints map[string]string  `json:"partialFingerprints"`
		Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
	}
	sarifSuppression struct {
		Kind          string `json:"kind"`
		Justification string `json:"justification"`
	}
)

// Addresses in SARIF output.
const (
	sarifSchema = "https://json.schemastore.org/sarif-2.1.0.json"
	projectURL  = "https://github.com/goverbs/goverbs"
)

// sarif returns the findings as a SARIF log. Accepted findings are suppressed.
func (a *Answer) sarif() *sarifLog {
	names := slices.Sorted(maps.Keys(ruleTexts))
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "verbsabi", InformationURI: projectURL}},
		Invocations: []sarifInvocation{{Successful: true}}, Results: []sarifResult{}}
	for _, name := range names {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{name, sarifMessage{ruleTexts[name]}})
	}
	for _, n := range a.NotInstalled {
		run.Invocations[0].Notifications = append(run.Invocations[0].Notifications,
			sarifNotification{"note", sarifMessage{"not installed: " + n.Name + ": " + n.Why}})
	}
	for _, n := range a.NotChecked {
		run.Invocations[0].Notifications = append(run.Invocations[0].Notifications,
			sarifNotification{"note", sarifMessage{"not checked: " + n.Name + ": " + n.Why}})
	}
	for _, f := range a.Findings {
		r := sarifResult{RuleID: f.Rule, RuleIndex: slices.Index(names, f.Rule), Level: "error",
			Message: sarifMessage{f.Text}, Fingerprints: map[string]string{"verbsabi/v1": f.ID},
			Locations: []sarifLocation{{sarifPhysical{sarifArtifact{fileURI(f.Path)}}, []sarifLogical{{f.ID}}}}}
		if f.Compatible {
			r.Level = "note"
		}
		if f.Accepted != "" {
			r.Suppressions = []sarifSuppression{{"external", f.Accepted}}
		}
		run.Results = append(run.Results, r)
	}
	return &sarifLog{Schema: sarifSchema, Version: "2.1.0", Runs: []sarifRun{run}}
}

// fileURI returns the URI of a file or directory.
func fileURI(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}

// Types of JUnit reports.
type (
	junitSuite struct {
		name              string
		failures, skipped int
		cases             []junitCase
	}
	junitCase struct {
		name             string
		failure, skipped *string
	}
)

// writeJUnit writes a test suite for each project's headers and for each library, with a test for each incompatible
// difference, or one passing test. Accepted differences and missing parts are skipped tests.
func (a *Answer) writeJUnit(w io.Writer) error {
	var all []junitSuite
	suite := func(name, path string) {
		s := junitSuite{name: name}
		for _, f := range a.Findings {
			if f.Compatible || f.Path != path {
				continue
			}
			c := junitCase{name: f.ID}
			if f.Accepted == "" {
				c.failure = &f.Text
				s.failures++
			} else {
				c.skipped = new("accepted: " + f.Accepted)
				s.skipped++
			}
			s.cases = append(s.cases, c)
		}
		if len(s.cases) == 0 {
			s.cases = []junitCase{{name: "compatible"}}
		}
		all = append(all, s)
	}
	if p := a.Program; p != nil {
		suite("program "+p.Main, p.Path)
	}
	for _, h := range a.Headers {
		suite(h.Source.noun()+" of "+h.Project, h.Dir)
	}
	for _, l := range a.Libraries {
		suite(l.Name, l.Path)
	}
	for _, n := range a.NotChecked {
		all = append(all, junitSuite{n.Name, 0, 1, []junitCase{{name: "checked", skipped: &n.Why}}})
	}
	for _, n := range a.NotInstalled {
		all = append(all, junitSuite{n.Name, 0, 1, []junitCase{{name: "installed", skipped: &n.Why}}})
	}
	p := printer{w: w}
	p.line(`<?xml version="1.0" encoding="UTF-8"?>`)
	p.line("<testsuites>")
	for _, s := range all {
		suite := escapeXML(s.name)
		p.line(`	<testsuite name="%s" tests="%d" failures="%d" skipped="%d">`, suite, len(s.cases), s.failures, s.skipped)
		for _, c := range s.cases {
			p.line(`		<testcase name="%s" classname="%s">`, escapeXML(c.name), suite)
			if c.failure != nil {
				p.line(`			<failure message="%s"></failure>`, escapeXML(*c.failure))
			}
			if c.skipped != nil {
				p.line(`			<skipped message="%s"></skipped>`, escapeXML(*c.skipped))
			}
			p.line("		</testcase>")
		}
		p.line("	</testsuite>")
	}
	p.line("</testsuites>")
	return p.err
}

// escapeXML escapes the value of an attribute, and replaces characters that XML cannot have. Package encoding/xml would
// add 100 KB to the command.
func escapeXML(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case strings.ContainsRune("&<>\"'\t\n\r", r):
			fmt.Fprintf(&b, "&#%d;", r)
		case r < ' ' || r == 0xfffe || r == 0xffff:
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// writeGitHub writes workflow commands of GitHub Actions, which annotate a run: an error for each incompatible
// difference, a warning for each accepted one, and a notice with the verdict.
func (a *Answer) writeGitHub(w io.Writer, verbose bool) error {
	p := printer{w: w}
	annotate := func(command, text string) { p.line("::%s title=verbsabi::%s", command, escapeCommand(text)) }
	for _, f := range a.Findings {
		switch {
		case f.Fails():
			annotate("error", f.Text)
		case f.Accepted != "":
			annotate("warning", f.Text+"; accepted: "+f.Accepted)
		case verbose:
			annotate("notice", f.Text)
		}
	}
	annotate("notice", a.title())
	return p.err
}

// escapeCommand escapes the data of a workflow command.
func escapeCommand(s string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(s)
}

// writeMarkdown writes a summary as Markdown: the verdicts, and a table of the incompatible differences.
func (a *Answer) writeMarkdown(w io.Writer, verbose bool) error {
	p := printer{w: w}
	p.line("## verbsabi: %s\n", a.Verdict)
	p.line("| checked | release | verdict | differences |\n|---|---|---|---|")
	if g := a.Program; g != nil {
		p.line("| %s | %s | | %d |", cell("program "+g.Main), cell(g.Module), len(g.Problems))
	}
	for _, h := range a.Headers {
		p.line("| %s | %s | %s | %d |", cell(h.Source.noun()+" of "+h.Project+" in "+h.Dir), cell(h.Release), h.Verdict,
			len(h.Differences)+len(h.Report.Mismatches))
	}
	for _, l := range a.Libraries {
		p.line("| %s | %s | %s | %d |", cell(l.Name), cell(l.Project+" "+orUnknown(l.Release)), l.Verdict, len(l.Problems))
	}
	for _, n := range a.NotInstalled {
		p.line("| %s | | not installed | |", cell(n.Name))
	}
	for _, n := range a.NotChecked {
		p.line("| %s | | not checked | |", cell(n.Name))
	}
	listed := false
	for _, f := range a.Findings {
		if f.Compatible && !verbose {
			continue
		}
		if !listed {
			p.line("\n| | difference | accepted |\n|---|---|---|")
			listed = true
		}
		mark := "wrong"
		if !f.Fails() {
			mark = "fine"
		}
		p.line("| %s | %s | %s |", mark, cell(f.Text), cell(f.Accepted))
	}
	if c := a.Change; c != nil {
		p.line("\nSince the baseline: %d new, %d gone.", len(c.New), len(c.Gone))
		for _, r := range c.Releases {
			p.line("- %s", cell(r))
		}
	}
	return p.err
}

// cell escapes the text of a table cell.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(printable.Text(s))
}
