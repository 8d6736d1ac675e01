// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// importRule is a row of imports.txt for one folder.
type importRule struct {
	folder       string
	ours, others []string
}

// readImportRules reads the rows of imports.txt.
func readImportRules(text string) (rules []importRule, err error) {
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := append(strings.Split(line, "\t"), "", "")
		if len(cells) > 5 {
			return nil, fmt.Errorf("imports.txt:%d: %d columns; want folders, packages, modules", i+1, len(cells)-2)
		}
		for _, folder := range strings.Fields(cells[0]) {
			if slices.ContainsFunc(rules, func(r importRule) bool { return r.folder == folder }) {
				return nil, fmt.Errorf("imports.txt:%d: second row for %s", i+1, folder)
			}
			rules = append(rules, importRule{folder, strings.Fields(cells[1]), strings.Fields(cells[2])})
		}
	}
	return rules, nil
}

// ruleFor returns the rule with the longest folder that contains a package, or nil.
func ruleFor(rules []importRule, path string) (rule *importRule) {
	for i, r := range rules {
		if under(path, r.folder) && (rule == nil || len(r.folder) > len(rule.folder)) {
			rule = &rules[i]
		}
	}
	return rule
}

// allowed reports whether a package of the module may import another package, or one of another module.
func allowed(rules []importRule, from, to string) bool {
	rule := ruleFor(rules, from)
	if rule == nil {
		return false
	}
	to, ours := folderOf(to)
	if !ours {
		return !strings.Contains(to, ".") || slices.Contains(rule.others, "*") || under(to, rule.others...)
	}
	if ruleFor(rules, to) == rule {
		return true
	}
	return slices.ContainsFunc(rule.ours, func(entry string) bool {
		folder, below := strings.CutSuffix(entry, "/...")
		return entry == "*" || entry == to || below && under(to, folder)
	})
}

func importRules(t *testing.T) []importRule {
	text, err := os.ReadFile("imports.txt")
	require.NoError(t, err)
	rules, err := readImportRules(string(text))
	require.NoError(t, err)
	return rules
}

// TestImports checks the imports of every package against imports.txt.
func TestImports(t *testing.T) {
	rules := importRules(t)
	used := map[*importRule]bool{}
	for _, p := range list(t, "./...") {
		from, ok := folderOf(p.ImportPath)
		require.True(t, ok, p.ImportPath)
		used[ruleFor(rules, from)] = true
		for _, to := range p.Imports {
			assert.True(t, allowed(rules, from, to), "%s imports %s; allow it in imports.txt, or move code", from, to)
		}
	}
	for i := range rules {
		assert.True(t, used[&rules[i]], "imports.txt: no package is below %s; remove the folder", rules[i].folder)
	}
}

// TestImportRules checks that the table rejects imports that the architecture forbids.
func TestImportRules(t *testing.T) {
	rules := importRules(t)
	for from, to := range map[string]string{
		"gen/rules":                      "modernc.org/cc/v4",
		"gen/parse":                      "github.com/dave/jennifer/jen",
		"gen/model":                      module + "/headers",
		"gen/emit":                       module + "/gen/parse",
		"gen/generate":                   module + "/rdma",
		"generated/ibv":                  module + "/runtime",
		"generated/efadv":                module + "/runtime",
		"generated/libmlx5":              module + "/generated/librdmacm",
		"generated/librdmacm":            module + "/rdma",
		"generated/mlx5dv":               module + "/generated/rdmacm",
		"generated/rdmacm":               "github.com/stretchr/testify",
		"runtime":                        module + "/generated/ibv",
		"rdma":                           module + "/gen/model",
		"rdma/internal/life":             module + "/rdma",
		"rdma/internal/chosen":           module + "/rpma",
		"rdma/soft":                      module + "/rdma",
		"rdma/soft/internal/wire/memory": module + "/rdma/soft/internal/device",
		"rdma/cm":                        module + "/generated/mlx5dv",
		"rdma/registration":              module + "/rdma/cm",
		"rpma":                           module + "/generated/librdmacm",
		"cmd/goverbs":                    module + "/conformance/vm",
		"unknown":                        module + "/rdma",
	} {
		assert.False(t, allowed(rules, from, to), "%s imports %s", from, to)
	}
	assert.True(t, allowed(rules, "rdma/mlx5", module+"/generated/mlx5dv"))
	assert.True(t, allowed(rules, "rdma/soft", module+"/rdma/soft/internal/device"))
	_, err := readImportRules("rdma\truntime\nrpma rdma\t\n")
	assert.ErrorContains(t, err, "imports.txt:2: second row for rdma")
	_, err = readImportRules("rdma\truntime\t\tfmt")
	assert.ErrorContains(t, err, "4 columns")
}

// TestVendors checks that importing rdma does not import vendor packages.
func TestVendors(t *testing.T) {
	for _, to := range list(t, "./rdma")[0].Deps {
		if to, ours := folderOf(to); ours {
			assert.False(t, under(to, vendors...), "rdma needs %s", to)
		}
	}
}

// TestTypePackagesImports checks that packages of types import no third-party code, and only lightweight packages of
// the standard library.
func TestTypePackagesImports(t *testing.T) {
	var patterns []string
	for _, n := range nouns {
		patterns = append(patterns, "./"+n)
	}
	for _, p := range list(t, patterns...) {
		for _, to := range p.Deps {
			if to != module+"/generated/ibv" && !strings.HasPrefix(to, "internal/") {
				assert.Contains(t, []string{"math/bits", "structs", "unsafe"}, to, "%s", p.ImportPath)
			}
		}
	}
}
