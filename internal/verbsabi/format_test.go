// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestJUnit reads a report with encoding/xml, whose characters need care.
func TestJUnit(t *testing.T) {
	a := &Answer{Libraries: []*Library{{Name: `"lib" & <'x'>`, Path: "p"}, {Name: "other", Path: "q"}},
		Findings: []Finding{{ID: "a\tb\r\n<c>", Text: "\x00 ä \xff \ufffe & \"]]>", Path: "p"},
			{ID: "accepted", Text: "text", Path: "p", Accepted: "it's fine"}, {ID: "compatible", Path: "q", Compatible: true}}}
	var b bytes.Buffer
	require.NoError(t, a.writeJUnit(&b))
	type message struct {
		Message string `xml:"message,attr"`
	}
	type testCase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Failure *message `xml:"failure"`
		Skipped *message `xml:"skipped"`
	}
	type suite struct {
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testCase `xml:"testcase"`
	}
	var got struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []suite  `xml:"testsuite"`
	}
	decoder := xml.NewDecoder(&b)
	require.NoError(t, decoder.Decode(&got))
	lib := a.Libraries[0].Name
	assert.Equal(t, []suite{
		{lib, 2, 1, 1, []testCase{
			{"a\tb\r\n<c>", lib, &message{"\ufffd ä \ufffd \ufffd & \"]]>"}, nil},
			{"accepted", lib, nil, &message{"accepted: it's fine"}},
		}},
		{"other", 1, 0, 0, []testCase{{"compatible", "other", nil, nil}}},
	}, got.Suites)
}
