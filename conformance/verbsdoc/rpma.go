// SPDX-License-Identifier: BSD-2-Clause

package verbsdoc

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/headers"
)

// RPMAPage returns docs/rpma.md, generated from files below root.
func RPMAPage(root string) (string, error) {
	release := headers.Primary("librpma")
	data, err := headers.Model("librpma-" + release)
	if err != nil {
		return "", err
	}
	m, err := model.Decode(release, data)
	if err != nil {
		return "", err
	}
	in, err := ReadRDMA(filepath.Join(root, "rpma"))
	if err != nil {
		return "", err
	}
	generated, err := ReadGenerated(filepath.Join(root, "generated", "librpma"))
	if err != nil {
		return "", err
	}
	return rpmaPage(m, in, generated)
}

// rpmaPage fails for a function that does not exist, and for one without a counterpart in package rpma or
// generated/librpma.
func rpmaPage(release *model.Release, in []Stated, generated map[string]string) (string, error) {
	where := map[string][]string{}
	for _, s := range in {
		if strings.HasPrefix(s.C, "rpma_") && generated[s.C] == "" {
			return "", fmt.Errorf("rpma/%s: %s names %s, which librpma.h does not declare", s.Place, s.Go, s.C)
		}
		if !slices.Contains(where[s.C], s.Go) {
			where[s.C] = append(where[s.C], s.Go)
		}
	}
	var lines, lacking []string
	for _, h := range release.Headers {
		for _, f := range slices.SortedFunc(slices.Values(h.Funcs),
			func(a, b model.Func) int { return cmp.Compare(a.Name, b.Name) }) {
			if len(where[f.Name]) == 0 || generated[f.Name] == "" {
				lacking = append(lacking, f.Name)
				continue
			}
			row := fmt.Sprintf("| %s | %s | `librpma.%s` |", f.Name, code(where[f.Name]), generated[f.Name])
			lines = append(lines, row)
		}
	}
	if lacking != nil {
		return "", fmt.Errorf("rpma or generated/librpma lacks %s", strings.Join(lacking, ", "))
	}
	return fmt.Sprintf(`# librpma → Go

Every function of librpma.h (librpma %s), %d in all: where it is in package rpma, which needs nothing of librpma, and
the function of generated/librpma that calls librpma itself. "make docs" generates this page from the recorded model,
the lines "C:" of package rpma's documentation, and generated/librpma; a test fails when it is stale.

| C | rpma | generated/librpma |
|---|---|---|
%s
`, release.Name, len(lines), strings.Join(lines, "\n")), nil
}
