// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"
)

// Pages is a directory of man pages, indexed by declarations.
type Pages struct {
	pages map[string]*manPage // name → page: "ibv_poll_cq.3"
	links map[string]string   // pages that only link to another one: "ibv_wr_send.3" → "ibv_wr_post.3"
}

// manPage holds the C names in one page.
type manPage struct {
	name     string
	titled   map[string]bool // functions in its NAME section
	synopsis map[string]bool // functions that its SYNOPSIS declares
	declared map[string]bool // functions that it declares anywhere
	defined  map[string]bool // types that it shows with their members: "struct ibv_wc"
	words    map[string]bool // every C name, except those in SEE ALSO
}

var (
	pageName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*\.[37]$`)
	// redirect matches a page that consists of a .so request.
	redirect = regexp.MustCompile(`^\.so +(?:[^ ]*/)?([^\s/]+)\s*$`)
	// fontEscape matches escapes that change the font or the size, or that have no width.
	fontEscape = regexp.MustCompile(`\\f(\[[A-Z]*\]|\([A-Z]{2}|[A-Z])|\\s[-+]?[0-9]|\\[&c|]`)
	section    = regexp.MustCompile(`^\.SH +"?([^"]*)"?\s*$`)
	request    = regexp.MustCompile(`^[.'][A-Za-z]+ *`)
	call       = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*) *\(`)
	// prototype matches a type, a name, and a parameter list that starts with a type of more than one word, or void.
	prototype = regexp.MustCompile(`[A-Za-z0-9_]\s+\**([A-Za-z_][A-Za-z0-9_]*) *\(` +
		`\s*(?:void *\)|[A-Za-z_][A-Za-z0-9_]*[ *]+[A-Za-z_*])`)
	definition = regexp.MustCompile(`\b(struct|union|enum)\s+([A-Za-z_][A-Za-z0-9_]*)\s*\{`)
)

// ReadPages reads the man pages of a directory: regular files, symbolic links between them, and pages that consist of a
// .so request. Files other than pages of sections 3 and 7 are skipped.
func ReadPages(dir fs.FS) (*Pages, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fmt.Errorf("man pages: %w; run make headers", err)
	}
	p := &Pages{pages: map[string]*manPage{}, links: map[string]string{}}
	texts := map[string]string{}
	for _, e := range entries {
		name := e.Name()
		if !pageName.MatchString(name) {
			continue
		}
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := fs.ReadLink(dir, name)
			if err != nil {
				return nil, fmt.Errorf("man page %s: %w", name, err)
			}
			p.links[name] = path.Base(target)
			continue
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, fmt.Errorf("man page %s: %w", name, err)
		}
		if to := redirect.FindSubmatch(text); to != nil {
			p.links[name] = string(to[1])
			continue
		}
		texts[name] = string(text)
	}
	p.readAll(texts)
	if len(p.pages) == 0 {
		return nil, fmt.Errorf("man pages: the directory holds none; run make headers")
	}
	for _, e := range entries {
		if _, link := p.links[e.Name()]; link && p.resolve(e.Name()) == nil {
			return nil, fmt.Errorf("man page %s refers to %s, which the directory lacks; add all "+
				"pages of the release", e.Name(), p.links[e.Name()])
		}
	}
	return p, nil
}

// readAll reads pages two at a time, since reading hundreds of pages takes a large part of the time for a release.
func (p *Pages) readAll(texts map[string]string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, 2)
	for name, text := range texts {
		wg.Go(func() {
			slots <- struct{}{}
			page := readPage(name, text)
			<-slots
			mu.Lock()
			p.pages[name] = page
			mu.Unlock()
		})
	}
	wg.Wait()
}

// resolve follows links from a name to a page. It returns nil if there is no such page.
func (p *Pages) resolve(name string) *manPage {
	for range len(p.links) + 1 { // bounded, since links may form a loop
		to, ok := p.links[name]
		if !ok {
			break
		}
		name = to
	}
	return p.pages[name]
}

func readPage(name, text string) *manPage {
	page := &manPage{
		name: name, titled: map[string]bool{}, synopsis: map[string]bool{}, declared: map[string]bool{},
		defined: map[string]bool{}, words: map[string]bool{},
	}
	for title, body := range sections(text) {
		if title == "SEE ALSO" {
			continue
		}
		for w := range strings.FieldsFuncSeq(body, notInName) {
			page.words[w] = true
			if title == "NAME" {
				page.titled[w] = true
			}
		}
		if title == "SYNOPSIS" {
			for _, m := range call.FindAllStringSubmatch(body, -1) {
				page.synopsis[m[1]] = true
			}
		}
		for _, m := range prototype.FindAllStringSubmatch(body, -1) {
			page.declared[m[1]] = true
		}
		if !strings.Contains(body, "{") {
			continue
		}
		for _, m := range definition.FindAllStringSubmatch(body, -1) {
			page.defined[m[1]+" "+m[2]] = true
		}
	}
	return page
}

// notInName reports whether a C name ends before this rune.
func notInName(r rune) bool {
	return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
}

// sections returns the text of each section without comments, requests, fonts and the quotes of request arguments.
func sections(text string) map[string]string {
	all := map[string]string{}
	title := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, `.\"`) || strings.HasPrefix(line, `'\"`) {
			continue
		}
		if m := section.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
			title = m[1]
			continue
		}
		line = fontEscape.ReplaceAllString(line, "")
		if found := request.FindString(line); found != "" {
			line = strings.ReplaceAll(line[len(found):], `"`, "")
		}
		all[title] += line
	}
	return all
}
