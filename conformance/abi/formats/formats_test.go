// SPDX-License-Identifier: BSD-2-Clause

// Package formats checks the output of verbsabi with libraries and schemas that others wrote: SARIF 2.1.0 by its JSON
// schema and go-sarif, JUnit by go-junit.
package formats

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/joshdk/go-junit"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/verbsabi"
)

// headers returns a copy of recorded headers in which two declarations are changed, and a policy that accepts one of
// the changes.
func headers(t *testing.T) (dir, policy string) {
	t.Helper()
	from := filepath.Join("../../../headers/cache/65.0/include")
	if _, err := os.Stat(filepath.Join(from, "infiniband/verbs.h")); err != nil {
		t.Skipf("the headers are missing (%v); run make headers", err)
	}
	dir = filepath.Join(t.TempDir(), "include")
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	name := filepath.Join(dir, "infiniband/verbs.h")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	for old, changed := range map[string]string{
		"IBV_WR_SEND,\n": "IBV_WR_SEND = 9,\n",
		"int ibv_close_device(struct ibv_context *context);": "void ibv_close_device(struct ibv_context *context);",
	} {
		require.Equal(t, 1, bytes.Count(text, []byte(old)))
		text = bytes.Replace(text, []byte(old), []byte(changed), 1)
	}
	require.NoError(t, os.Chmod(name, 0o644))
	require.NoError(t, os.WriteFile(name, text, 0o644))
	policy = filepath.Join(t.TempDir(), "policy")
	require.NoError(t, os.WriteFile(policy,
		[]byte("function ibv_close_device prototype\t9999-12-31\tits result is not used, <&> \"quoted\"\n"), 0o644))
	return dir, policy
}

// output runs the check.
func output(t *testing.T, format string) []byte {
	t.Helper()
	dir, policy := headers(t)
	var out bytes.Buffer
	ok, err := verbsabi.Run(context.Background(), verbsabi.Options{Include: dir, Only: "headers", Packages: "ibv",
		Target: runtime.GOARCH, Policy: policy, Format: format}, &out)
	require.NoError(t, err)
	assert.False(t, ok)
	return out.Bytes()
}

// schema returns the JSON schema of SARIF 2.1.0, which go-sarif contains as a constant.
func schema(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/owenrumney/go-sarif/v3").Output()
	require.NoError(t, err)
	packages, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "pkg/report/v210/sarif/*.go"))
	require.NoError(t, err)
	for _, name := range packages {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		found := ""
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if ok && len(spec.Names) == 1 && spec.Names[0].Name == "schema" && len(spec.Values) == 1 {
				if text, ok := spec.Values[0].(*ast.BasicLit); ok {
					found, err = strconv.Unquote(text.Value)
					require.NoError(t, err)
				}
			}
			return true
		})
		if found != "" {
			return found
		}
	}
	t.Fatal("go-sarif has no schema")
	return ""
}

func TestSARIF(t *testing.T) {
	out := output(t, "sarif")
	text, err := jsonschema.UnmarshalJSON(strings.NewReader(schema(t)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("sarif.json", text))
	s, err := c.Compile("sarif.json")
	require.NoError(t, err)
	log, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
	require.NoError(t, err)
	require.NoError(t, s.Validate(log))
	require.Error(t, s.Validate(map[string]any{"version": "2.1.0"}), "the schema checks something")

	report, err := sarif.FromBytes(out)
	require.NoError(t, err)
	require.Len(t, report.Runs, 1)
	run := report.Runs[0]
	levels := map[string]string{}
	for _, r := range run.Results {
		suppressed := ""
		if len(r.Suppressions) > 0 {
			suppressed = " suppressed"
		}
		levels[r.PartialFingerprints["verbsabi/v1"]] = string(r.Level) + suppressed
		assert.Equal(t, *r.RuleID, *run.Tool.Driver.Rules[r.RuleIndex].ID)
	}
	assert.Equal(t, "error", levels["enumerator IBV_WR_SEND value"], "%v", levels)
	assert.Equal(t, "error suppressed", levels["function ibv_close_device prototype"])
}

func TestJUnit(t *testing.T) {
	suites, err := junit.Ingest(output(t, "junit"))
	require.NoError(t, err)
	require.Len(t, suites, 1)
	suite := suites[0]
	assert.Equal(t, "headers of rdma-core", suite.Name)
	status := map[string]junit.Status{}
	for _, test := range suite.Tests {
		status[test.Name] = test.Status
	}
	assert.Equal(t, junit.StatusFailed, status["enumerator IBV_WR_SEND value"], "%v", status)
	assert.Equal(t, junit.StatusSkipped, status["function ibv_close_device prototype"])
	assert.Positive(t, suite.Totals.Failed)
	assert.Equal(t, 1, suite.Totals.Skipped)
}
