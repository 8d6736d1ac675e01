// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

func TestNames(t *testing.T) {
	p := Packages[0]
	for c, want := range map[string]string{
		"ibv_send_wr": "SendWR", "ibv_wr_opcode": "WROpcode", "ibv_gid": "GID", "ibv_srq_init_attr_ex": "SRQInitAttrEx",
		"_ibv_device_ops": "DeviceOps", "verbs_context": "VerbsContext", "ib_uverbs_qp_type": "IBUverbsQPType",
		"ibv_ah":                "AH",
		"_compat_ibv_port_attr": "CompatIBVPortAttr",
	} {
		assert.Equal(t, want, p.TypeName(c), c)
	}
	for c, want := range map[string]string{
		"IBV_WR_SEND": "WR_SEND", "IB_UVERBS_QPT_RC": "IB_UVERBS_QPT_RC",
		"__VERBS_ABI_IS_EXTENDED": "VERBS_ABI_IS_EXTENDED", "IBV_": "IBV_",
	} {
		assert.Equal(t, want, p.ConstName(c), c)
	}
	for c, want := range map[string]string{
		"num_sge": "NumSGE", "wr_id": "WRID", "rkey": "RKey", "imm_data": "ImmData",
		"_ABI_placeholder3": "AbiPlaceholder3",
		"ABI_placeholder2":  "AbiPlaceholder2", "src_ip": "SrcIP", "dlid": "DLID", "type": "Type",
	} {
		if c == "_ABI_placeholder3" || c == "ABI_placeholder2" {
			want = "ABI" + want[3:]
		}
		assert.Equal(t, want, FieldName(c), c)
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"ibv_wc", "IBV_WR_SEND", "_x", "1", "", "ibv_9", "a__b", "type", "ÿ"} {
		f.Add(s)
	}
	p := Packages[0]
	f.Fuzz(func(t *testing.T, c string) {
		for _, name := range []string{p.TypeName(c), FieldName(c)} {
			if isC(c) && (!token.IsIdentifier(name) || !token.IsExported(name)) {
				t.Errorf("%q becomes %q, which is not an exported Go name", c, name)
			}
		}
		if isC(c) && !token.IsIdentifier(p.ConstName(c)) {
			t.Errorf("%q becomes %q, which is not a Go name", c, p.ConstName(c))
		}
	})
}

func isC(s string) bool {
	_, err := model.ParseType(s)
	return err == nil && token.IsIdentifier(s)
}

func TestExceptions(t *testing.T) {
	x, err := ParseExceptions("x.txt", "# comment\n\na | skip | | why\nb.c | holds | e | because\n")
	require.NoError(t, err)
	assert.NotNil(t, x.find(Skip, "a"))
	assert.Nil(t, x.find(Skip, "b.c"))
	assert.EqualError(t, Finish(x),
		"x.txt:4: stale exception: holds b.c does not apply to any declaration; delete the row")
	x.find(Holds, "b.c")
	assert.NoError(t, Finish(x))

	for text, want := range map[string]string{
		"a | skip | why":                         "x.txt:1: 3 columns",
		"a | drop | | why":                       `x.txt:1: unknown action "drop"`,
		"a | skip | | ":                          "x.txt:1: skip needs a C name and a reason",
		"a | name | | why":                       "x.txt:1: name needs",
		"a | skip | b | why":                     "x.txt:1: skip needs",
		"a | skip | | why\n\na | skip | | twice": "x.txt:3: duplicate skip a, first at x.txt:1",
	} {
		_, err := ParseExceptions("x.txt", text)
		assert.ErrorContains(t, err, want)
	}
}

func release(name string, enumerators ...string) *model.Release {
	e := model.Enum{Tag: "e", Size: 4}
	for _, n := range enumerators {
		e.Enumerators = append(e.Enumerators, model.Enumerator{Name: n, Value: "1"})
	}
	return &model.Release{Name: name, Targets: []string{"amd64"},
		Headers: []model.Header{{Name: "infiniband/a.h", Enums: []model.Enum{e}}}}
}

func TestSince(t *testing.T) {
	h := newHistory(Recorded{release("33.2", "A", "GAP"), release("44.0", "A", "B"),
		release("65.0", "A", "B", "C", "GAP")})
	assert.Equal(t, "33.2 or earlier", h.of("A"))
	assert.Equal(t, "44.0", h.of("B"))
	assert.Equal(t, "65.0", h.of("C"))
	assert.Equal(t, "65.0", h.of("GAP"), "it was missing in between")
	assert.Empty(t, h.of("D"))
}

func TestWhere(t *testing.T) {
	r := release("1.0", "A")
	text, err := r.Encode()
	require.NoError(t, err)
	in := Input{Release: r, Path: "models/1.0.json", Text: text}
	assert.Regexp(t, `^models/1\.0\.json:\d+$`, in.Where("enum e"))
	assert.Regexp(t, `^models/1\.0\.json:\d+$`, in.Where("A"))
	assert.Equal(t, "models/1.0.json", in.Where("nothing"))
}

// TestInitialisms checks that every word occurs in a recorded name.
func TestInitialisms(t *testing.T) {
	require.NoError(t, initialisms.Err())
	paths, err := filepath.Glob("../../headers/models/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	used := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`"tag": ?"\w+"|"[a-z0-9_]+"`).FindAllString(string(text), -1) {
			for word := range strings.FieldsFuncSeq(strings.ToLower(name),
				func(r rune) bool { return strings.ContainsRune(`_": `, r) }) {
				used[word] = true
			}
		}
	}
	for _, row := range initialisms.Rows {
		assert.True(t, used[row.Columns[0]], "%s: stale row: no name contains the word %s; delete it", row.At,
			row.Columns[0])
	}
}
