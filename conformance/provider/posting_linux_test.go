// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/provider/table"
)

var update = flag.Bool("update", false, "write the results to posting.csv")

const postingFile = "testdata/posting.csv"

// idle lists the adapters without a working device, each with the first release whose provider opens it.
var idle = []struct {
	Adapter
	since string
}{{MANA, "56.1"}, {IRDMA, "44.0"}, {BNXT, "44.0"}, {HNS, "44.0"}}

// row holds the requirements of a verb: bytes of stack, and system calls. Only the names are printed.
type row struct{ release, provider, call, stack, commands string }

func (r row) String() string {
	return strings.Join([]string{r.release, r.provider, r.call, r.stack, r.commands}, ",")
}

// TestPosting runs the providers of idle adapters: they open them, create objects and post, under seccomp and on a
// painted stack. It also records the system calls for posting to a queue pair in ERR and for polling its completions:
// verbs that make any are called through Go's scheduler by rdma/internal/provider.
func TestPosting(t *testing.T) { posting(t, emulated(t)) }

func posting(t *testing.T, e *Emulated) {
	t.Helper()
	program := compile(t, e, "pure")
	var rows []row
	for _, a := range idle {
		if e.libraries.Release < a.since {
			continue
		}
		on := e.As(a.Adapter)
		failed := inErrors(t, on, program)
		if e.libraries.foreign() {
			assert.Len(t, failed, 4) // seccomp and stack addresses belong to this machine
			continue
		}
		for line := range strings.Lines(output(t, on, program, "posts")) {
			stack, call, _ := strings.Cut(strings.TrimSpace(line), " ")
			assert.Less(t, number(t, stack), mostStack, "bytes of stack that %s takes", call)
			rows = append(rows, row{e.libraries.Release, a.Name, call, stack, "0"})
		}
		rows = append(rows, failed...)
	}
	if e.libraries.foreign() || e.libraries.Arch != "amd64" {
		return
	}
	compareRows(t, e.libraries.Release, rows)
}

// mostStack is smaller than any stack on which Go calls C.
const mostStack = 2048

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// inErrors returns the rows for a queue pair in ERR.
func inErrors(t *testing.T, e *Emulated, program string) (rows []row) {
	t.Helper()
	record := filepath.Join(t.TempDir(), "record")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := e.Command(ctx, program, "error")
	cmd.Env = append(cmd.Env, "GOVERBS_RECORD="+record)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", e.adapter.Name, out)
	const port = "command 2," // a port query precedes and follows each call
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	parts := strings.Split(read(t, record), port)
	require.Greater(t, len(parts), len(lines)+1)
	for i, part := range parts[len(parts)-len(lines)-1 : len(parts)-1] {
		result, call, _ := strings.Cut(lines[i], " ")
		rows = append(rows, row{e.libraries.Release, e.adapter.Name,
			fmt.Sprintf("%s in ERR: %s", call, result), "", fmt.Sprint(strings.Count(part, "\ncommand "))})
	}
	return rows
}

// compareRows compares the rows for some providers of a release with the file, or writes them.
func compareRows(t *testing.T, release string, rows []row) {
	t.Helper()
	head, old, _ := strings.Cut(read(t, postingFile), "\n")
	var here, want, others []string
	of := map[string]bool{}
	for _, r := range rows {
		here = append(here, r.String())
		of[r.release+","+r.provider] = true
	}
	for line := range strings.Lines(old) {
		line = strings.TrimSpace(line)
		if cells := strings.SplitN(line, ",", 3); of[cells[0]+","+cells[1]] {
			want = append(want, line)
		} else {
			others = append(others, line)
		}
	}
	if !*update {
		assert.Equal(t, table.Head, head)
		assert.ElementsMatch(t, want, here, "go test . -run 'TestPosting|TestPure' -update, and then go test ./table "+
			"-update, write it")
		return
	}
	all := append(others, here...)
	slices.SortStableFunc(all, func(a, b string) int { // newest release first
		cells, than := strings.SplitN(a, ",", 3), strings.SplitN(b, ",", 3)
		return cmp.Or(strings.Compare(than[0], cells[0]), strings.Compare(cells[1], than[1]))
	})
	require.NoError(t, os.WriteFile(postingFile, []byte(table.Head+"\n"+strings.Join(all, "\n")+"\n"), 0o644))
}
