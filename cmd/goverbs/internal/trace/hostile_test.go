// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const head = `{"t":0,"trace":1,"program":"p"}` + "\n"

// endless returns a repeated byte.
type endless byte

func (e endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(e)
	}
	return len(b), nil
}

// TestHostileFiles checks that invalid files are rejected with a line number, within limited memory.
func TestHostileFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "not a trace",
		"\n":                     "not a trace",
		"\x7fELF\n":              "not a trace",
		"{}\n":                   "not a trace",
		head + "[]\n":            "line 2: json",
		head + `{"t":-1}` + "\n": "line 2: json",
	} {
		_, err := parse(strings.NewReader(text))
		assert.ErrorContains(t, err, want, "%q", text)
	}
	_, err := parse(io.MultiReader(strings.NewReader(head), endless('x')))
	assert.ErrorContains(t, err, "line 2 has more than")
	for _, element := range []string{"0,", "null,", `"",`} {
		for _, list := range []string{`{"wrs":[`, `{"wrs":[{"sges":[`, `{"wcs":[`, `{"counters":[`} {
			line := list + strings.Repeat(element, 1<<20)
			line = line[:len(line)-1] + strings.Repeat("]}", strings.Count(list, "[")) + "\n"
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := parse(strings.NewReader(head + line))
			runtime.ReadMemStats(&after)
			assert.ErrorContains(t, err, "line 2: json", "%s%s", list, element)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%s%s", list, element)
		}
	}
	many := `{"wrs":[` + strings.Repeat("{},", 1<<20) + "{}]}\n"
	_, err = parse(io.MultiReader(strings.NewReader(head), strings.NewReader(strings.Repeat(many, 5))))
	assert.ErrorContains(t, err, "line 5: more than")
	got, err := parse(strings.NewReader(head + `{"verb":"a"}` + "\n" + `{"verb":"cut o`))
	require.NoError(t, err)
	assert.Len(t, got.Events, 1, "the program died")
	got, err = parse(strings.NewReader(head + `{"verb":"a\u001b[2Jb","error":"c\u009bd","errno":1}` + "\n"))
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, got.WriteText(&out))
	require.NoError(t, Findings{{Where: "a\x1b]0;b", What: "w", Why: "y\a"}}.WriteText(&out))
	assert.NotContains(t, out.String(), "\x1b")
	assert.NotContains(t, out.String(), "\u009b")
	assert.NotContains(t, out.String(), "\a")
}

// FuzzExplain checks that no file makes show or explain panic.
func FuzzExplain(f *testing.F) {
	f.Add([]byte(head))
	for _, name := range []string{"testdata/receive.trace", "testdata/stream.trace"} {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parse(bytes.NewReader(text))
		if err != nil {
			return
		}
		require.NoError(t, Explain(got, got).WriteText(io.Discard))
		require.NoError(t, got.WriteText(io.Discard))
		require.NoError(t, got.WriteLines(io.Discard))
		require.NoError(t, got.WriteChrome(io.Discard))
	})
}
