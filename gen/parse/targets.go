// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/headers"
)

// targetGroups groups the targets for which the C parser gets the same input: the same values of the predefined macros
// that headers mention, and the same sizes of integers and pointers. Only one target of each group is parsed. The
// signedness of char is ignored, since it affects only character constants, and the tests compare every value with the
// C compiler of every target.
func (src Source) targetGroups() ([][]string, error) {
	mentioned, err := src.identifiers()
	if err != nil {
		return nil, err
	}
	var groups [][]string
	groupOf := map[string]int{} // input → group
	for _, target := range src.Targets {
		input, err := src.parserInput(target, mentioned)
		if err != nil {
			return nil, err
		}
		i, ok := groupOf[input]
		if !ok {
			i = len(groups)
			groupOf[input] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], target)
	}
	return groups, nil
}

// parserInput returns everything in the parser's input that depends on the target.
func (src Source) parserInput(target string, mentioned map[string]bool) (string, error) {
	abi, err := targetABI(src.goos(), target)
	if err != nil {
		return "", err
	}
	text, err := headers.MacrosOf(src.goos(), target)
	if err != nil {
		return "", noMacros(target)
	}
	bodies := map[string]string{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "#define "); ok {
			name := identifier.FindString(rest)
			bodies[name] = rest
		}
	}
	reached := map[string]bool{}
	var reach func(name string)
	reach = func(name string) { // the body of a macro mentions other macros
		body, ok := bodies[name]
		if !ok || reached[name] {
			return
		}
		reached[name] = true
		for _, inner := range identifier.FindAllString(body, -1) {
			reach(inner)
		}
	}
	for name := range mentioned {
		reach(name)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(reached)) {
		b.WriteString(bodies[name])
	}
	for _, kind := range slices.Sorted(maps.Keys(predefined)) {
		fmt.Fprintln(&b, kind, abi.Types[kind])
	}
	fmt.Fprintln(&b, abi.Types[cc.Ptr], abi.Types[cc.Enum], abi.ByteOrder)
	return b.String(), nil
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// identifiers returns all identifiers in the headers and the shim.
func (src Source) identifiers() (map[string]bool, error) {
	all := map[string]bool{}
	scan := func(dir fs.FS, name string) error {
		text, err := fs.ReadFile(dir, name)
		for _, id := range identifier.FindAll(text, -1) {
			all[string(id)] = true
		}
		return err
	}
	for _, id := range identifier.FindAllString(builtins, -1) {
		all[id] = true
	}
	err := fs.WalkDir(headers.ShimOf(src.goos()), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return scan(headers.ShimOf(src.goos()), path)
	})
	if err != nil {
		return nil, err
	}
	for _, name := range src.Headers {
		if err := scan(src.Include, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}
