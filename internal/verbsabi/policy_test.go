// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample is an answer with two incompatible differences and a compatible one.
func sample() *Answer {
	a := &Answer{
		Headers: []*Include{{Project: "rdma-core", Verdict: Incompatible, Packages: []string{"ibv"}, Dir: "/usr/include",
			Release: "44.0", Primary: "65.0", Report: &Report{Project: "rdma-core", Release: "44.0", Target: "amd64"},
			Differences: []Difference{
				{Item: Item{Kind: RecordItem, Name: "ibv_port_attr", Fact: "size", Want: "56"}, Headers: "52",
					Since: "56.1", Compatible: true, Why: "grown at its end"},
				{Item: Item{Kind: FieldItem, Name: "ibv_sge", Path: "addr", Fact: "offset", Want: "0"}, Headers: "8",
					Why: "the offset differs"},
			}}},
		Libraries: []*Library{{Name: "libibverbs.so.1", Package: "ibv", Path: "/lib/libibverbs.so.1", Project: "rdma-core",
			Verdict: Incompatible, Problems: []SymbolDifference{{Name: "ibv_close_device", Why: "not in this library"}}}},
		NotInstalled: []Absent{{Name: "libefa.so.1", Why: "100% of it | is missing"}},
	}
	a.Findings = a.findings()
	a.judge()
	return a
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	return name
}

func TestFindings(t *testing.T) {
	var ids []string
	for _, f := range sample().Findings {
		ids = append(ids, f.ID)
	}
	assert.Equal(t, []string{"field ibv_sge.addr offset", "symbol libibverbs.so.1 ibv_close_device",
		"record ibv_port_attr size"}, ids)
	assert.Equal(t, "enumerator IBV_WR_SEND value",
		string(EnumeratorItem)+" "+Item{Kind: EnumeratorItem, Name: "ibv_wr_opcode", Path: "IBV_WR_SEND", Fact: "value"}.label())
	assert.Equal(t, "constant IBV_X value",
		string(ConstantItem)+" "+Item{Kind: ConstantItem, Name: "-", Path: "IBV_X", Fact: "value"}.label())
}

// TestPolicy: accepted differences do not make the installation incompatible until their last day is over. Rows that
// match nothing are errors.
func TestPolicy(t *testing.T) {
	name := file(t, "# accepted\n\nfield ibv_sge.addr offset\t2027-06-30\tthis program has no ibv_sge\r\n"+
		"symbol libibverbs.so.1 ibv_*\t2027-07-01\tit never closes devices\n")
	judge := func(day string) (Verdict, error) {
		p, err := readPolicy(name)
		require.NoError(t, err)
		now, err := time.Parse(time.DateTime, day)
		require.NoError(t, err)
		a := sample()
		err = p.apply(a.Findings, now)
		a.judge()
		return a.Verdict, err
	}
	verdict, err := judge("2027-06-30 23:59:59")
	assert.Equal(t, Compatible, verdict)
	assert.NoError(t, err)
	verdict, err = judge("2027-07-01 00:00:00")
	assert.Equal(t, Incompatible, verdict)
	assert.EqualError(t, err, name+`:3: "field ibv_sge.addr offset" expired on 2027-06-30`)

	stale := file(t, "record ibv_port_attr size\t2027-06-30\tcompatible anyway\n")
	p, err := readPolicy(stale)
	require.NoError(t, err)
	assert.EqualError(t, p.apply(sample().Findings, time.Time{}),
		stale+`:1: "record ibv_port_attr size" matches no incompatible difference; delete the row`)
}

func TestPolicyErrors(t *testing.T) {
	for text, want := range map[string]string{
		"field a.b offset":                       ":1: want three columns separated by tabs: difference, last day, reason",
		"field a.b offset\t2027-06-30\t \n":      ":1: want three columns",
		"field a.b offset\t30.6.2027\treason\n":  `:1: the last day "30.6.2027" is not a date such as 2027-06-30`,
		"#\nfield [a offset\t2027-06-30\treason": `:2: the pattern "field [a offset" is not valid`,
		"\t2027-06-30\treason":                   `:1: the pattern "" is not valid`,
		"field a.b offset\t2027-02-30\treason\n": "is not a date",
	} {
		_, err := readPolicy(file(t, text))
		assert.ErrorContains(t, err, want, "%q", text)
	}
	_, err := readPolicy(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestBaseline: differences in the baseline are accepted, and others are new.
func TestBaseline(t *testing.T) {
	name := filepath.Join(t.TempDir(), "baseline")
	require.NoError(t, newBaseline(sample(), "amd64").write(name))
	b, err := readBaseline(name)
	require.NoError(t, err)

	a := sample()
	change, err := b.apply(a, "amd64")
	require.NoError(t, err)
	assert.Equal(t, &Change{Releases: []string{}, New: []string{}, Gone: []string{}}, change)
	a.judge()
	assert.Equal(t, Compatible, a.Verdict)

	a = sample()
	a.Headers[0].Release = "45.0"
	a.Headers[0].Differences[1].Path = "length"
	a.Libraries = nil
	a.Findings = a.findings()
	change, err = b.apply(a, "amd64")
	require.NoError(t, err)
	assert.Equal(t, &Change{
		Releases: []string{"headers of rdma-core: 44.0 in the baseline, 45.0 now",
			"libibverbs.so.1: unknown release in the baseline, not checked now"},
		New:  []string{"field ibv_sge.length offset"},
		Gone: []string{"field ibv_sge.addr offset", "symbol libibverbs.so.1 ibv_close_device"},
	}, change)
	a.judge()
	assert.Equal(t, Incompatible, a.Verdict)

	_, err = b.apply(sample(), "arm64")
	assert.EqualError(t, err, "the baseline is for amd64, and this check is for arm64")
}

// TestBaselineErrors: a baseline that is missing, damaged or edited is an error.
func TestBaselineErrors(t *testing.T) {
	name := filepath.Join(t.TempDir(), "baseline")
	_, err := readBaseline(name)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "write it with -write-baseline")
	require.NoError(t, newBaseline(sample(), "amd64").write(name))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	_, err = readBaseline(file(t, string(text[:len(text)/2])))
	assert.ErrorContains(t, err, "is not valid")
	_, err = readBaseline(file(t, string(bytes.Replace(text, []byte("ibv_sge.addr"), []byte("ibv_sge.lkey"), 1))))
	assert.ErrorContains(t, err, "was edited")
}

func TestGitHub(t *testing.T) {
	a := sample()
	a.Findings[1].Accepted = "not used\n100%"
	a.judge()
	var out bytes.Buffer
	require.NoError(t, a.write(&out, "github", false))
	assert.Equal(t, `::error title=verbsabi::field ibv_sge.addr: offset is 8 in these headers, 0 in Go: the offset differs
::warning title=verbsabi::libibverbs.so.1: symbol ibv_close_device: not in this library; accepted: not used%0A100%25
::notice title=verbsabi::incompatible: headers of rdma-core 44.0, libibverbs.so.1
`, out.String())
}

func TestMarkdown(t *testing.T) {
	a := sample()
	a.Findings[1].Accepted = "a | b"
	a.judge()
	var out bytes.Buffer
	require.NoError(t, a.write(&out, "markdown", false))
	assert.Equal(t, `## verbsabi: incompatible

| checked | release | verdict | differences |
|---|---|---|---|
| headers of rdma-core in /usr/include | 44.0 | incompatible | 2 |
| libibverbs.so.1 | rdma-core unknown release | incompatible | 1 |
| libefa.so.1 | | not installed | |

| | difference | accepted |
|---|---|---|
| wrong | field ibv_sge.addr: offset is 8 in these headers, 0 in Go: the offset differs |  |
| fine | libibverbs.so.1: symbol ibv_close_device: not in this library | a \| b |
`, out.String())
}

func TestFormatErrors(t *testing.T) {
	assert.ErrorContains(t, sample().write(&bytes.Buffer{}, "yaml", false), `unknown format "yaml"; use one of github, json`)
	assert.ErrorContains(t, checkFiles([]string{"sarif"}), `"sarif" names no file`)
	assert.ErrorContains(t, checkFiles([]string{"yaml=f"}), `unknown format "yaml"`)
	assert.NoError(t, checkFiles([]string{"sarif=f"}))
}
