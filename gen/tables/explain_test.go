// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"io/fs"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
func link(to string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink | 0o777}
}

// testPages returns pages in both formats of rdma-core: hand-written, and generated from Markdown.
func testPages() fstest.MapFS {
	return fstest.MapFS{
		"ibv_make_cake.3": file(`.\" ibv_commented is only a comment
.SH "NAME"
ibv_make_cake, ibv_eat_cake \- about cakes
.SH "SYNOPSIS"
.BI "struct ibv_cake *ibv_make_cake(struct ibv_oven " "*oven" ", int " "layers" );
.SH "DESCRIPTION"
.nf
struct ibv_cake {
.in +8
enum ibv_icing icing;  /* IBV_ICING_LEMON or IBV_ICING_PLAIN */
};
.fi
.SH "SEE ALSO"
.BR ibv_light_candle (3)
`),
		"ibv_wr_post.3": file(`.SH NAME
ibv_wr_start \- post
.SH SYNOPSIS
.EX
void ibv_wr_start(\f[B]struct\f[R] ibv_qp_ex *qp);
void ibv_wr_plate(\f[B]struct\f[R] ibv_qp_ex *qp, \f[B]struct\f[R] ibv_cake *cake);
.EE
.SH DESCRIPTION
The IBV_ICING_PLAIN one. Also int ibv_taste(struct ibv_qp_ex *qp); see \f[I]ibv_old_esp\f[R] {.
.EX
\f[B]struct\f[R] ibv_old_esp { int x; };
.EE
`),
		"ibv_make_pie.3": file(".SH NAME\nibv_make_pie \\- pies\n.SH NOTES\nuse ibv_hidden(2), ibv_count_crumbs and " +
			"a struct ibv_pie_dish;\n" +
			"IBV_CRUMB_SMALL, IBV_TRAY_DEEP\n"),
		"ibv_wr_send.3":  link("ibv_wr_post.3"),
		"ibv_wr_again.3": link("ibv_wr_send.3"),
		"ibv_put.3":      file(".so man3/ibv_wr_post.3\n"),
		"README":         file("ibv_nothing"),
		"ibv_verbs.1":    file("ibv_nothing"),
	}
}

func TestExplain(t *testing.T) {
	pages, err := ReadPages(testPages())
	require.NoError(t, err)
	fn := func(name string, params ...string) model.Func {
		f := model.Func{Name: name, Man: "stale.3", Proto: model.Proto{Result: "void"}}
		for _, p := range params {
			f.Params = append(f.Params, model.Param{Type: p})
		}
		return f
	}
	enum := func(tag string, names ...string) model.Enum {
		e := model.Enum{Tag: tag, Man: "stale.3"}
		for _, n := range names {
			e.Enumerators = append(e.Enumerators, model.Enumerator{Name: n})
		}
		return e
	}
	callback := model.Func{Name: "ibv_make_pie", Proto: model.Proto{Result: "struct ibv_pie *", Params: []model.Param{
		{Func: &model.Proto{Result: "void", Params: []model.Param{{Type: "struct ibv_filling *"}}}},
	}}}
	r := &model.Release{Headers: []model.Header{{
		Funcs: []model.Func{
			fn("ibv_wr_plate", "struct ibv_qp_ex *", "struct ibv_cake *"), fn("ibv_make_cake",
				"struct ibv_oven *"), fn("ibv_eat_cake"),
			fn("ibv_wr_send"), fn("ibv_wr_again"), fn("ibv_put",
				"struct ibv_wr_thing *"), fn("_ibv_make_cake"), fn("ibv_taste"),
			fn("ibv_count_crumbs"), fn("ibv_light_candle",
				"struct ibv_wick *"), fn("ibv_commented"), fn("ibv_nothing"), callback,
		},
		Records: []model.Record{
			{Kind: model.Struct, Tag: "ibv_cake"}, {Kind: model.Struct, Tag: "ibv_oven"}, {Kind: model.Struct,
				Tag: "ibv_pie_dish"},
			{Kind: model.Union, Tag: "ibv_pie"}, {Kind: model.Struct, Tag: "ibv_filling"}, {Kind: model.Struct,
				Tag: "ibv_wick"},
			{Kind: model.Struct, Tag: "ib_uverbs_esp"}, {Kind: model.Opaque, Tag: "ibv_cake"}, {Kind: model.Incomplete,
				Tag: "ibv_wr_thing"},
		},
		Enums: []model.Enum{
			enum("ibv_icing", "IBV_ICING_LEMON", "IBV_ICING_PLAIN"), enum("", "IBV_CRUMB_SMALL"), enum("",
				"IBV_NOWHERE"),
			enum("ibv_tray", "IBV_TRAY_DEEP", "IBV_TRAY_FLAT", "IBV_TRAY_OVAL"), enum("ibv_cake", "IBV_NONE",
				"IBV_TRAY_DEEP", "IBV_NOBODY"),
		},
		Macros: []model.Macro{{Name: "ibv_old_esp", Kind: model.Alias, Target: "ib_uverbs_esp"}},
	}}}
	pages.Explain(r)
	h := r.Headers[0]
	cake, post, pie := "ibv_make_cake.3", "ibv_wr_post.3", "ibv_make_pie.3"
	for i, want := range []struct{ man, why string }{
		{post, "declared in SYNOPSIS"}, {cake, "page of its name"}, {cake, "named in NAME"}, {post, "link"}, {post,
			"link to a link"},
		{post, ".so page"}, {cake, "helper of a public function"}, {post, "declared in the text"}, {pie, "mentioned"},
		{"", "SEE ALSO does not explain"}, {"", "comments do not explain"}, {"", "other files are not pages"}, {pie,
			"page of its name"},
	} {
		assert.Equal(t, want.man, h.Funcs[i].Man, "%s: %s", h.Funcs[i].Name, want.why)
	}
	for i, want := range []struct{ man, why string }{
		{cake, "members shown"}, {cake, "prototype has it"}, {pie, "mentioned"}, {pie, "result of a prototype"},
		{pie, "parameter of a callback"}, {"", "only in an unexplained prototype"}, {post,
			"shown under the name that a macro gives"},
		{"", "opaque types are the C library's"}, {post, "prototype has it"},
	} {
		assert.Equal(t, want.man, h.Records[i].Man, "%s: %s", h.Records[i].CName(), want.why)
	}
	for i, want := range []struct{ man, why string }{
		{cake, "most enumerators"}, {pie, "one enumerator of one"}, {"", "none"}, {pie,
			"one of three enumerators, if no page is better"},
		{post, "a page that has the type is better than one of three"},
	} {
		assert.Equal(t, want.man, h.Enums[i].Man, "enum %d %s: %s", i, h.Enums[i].Tag, want.why)
	}
}

func TestReadPagesRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(fstest.MapFS)
		want   string
	}{
		"dangling link": {func(m fstest.MapFS) { m["ibv_x.3"] = link("ibv_gone.3") },
			"man page ibv_x.3 refers to ibv_gone.3"},
		"dangling .so": {func(m fstest.MapFS) { m["ibv_x.3"] = file(".so man3/ibv_gone.3\n") },
			"man page ibv_x.3 refers to ibv_gone.3"},
		"loop": {func(m fstest.MapFS) { m["ibv_x.3"], m["ibv_y.3"] = link("ibv_y.3"), link("ibv_x.3") },
			"man page ibv_x.3 refers to ibv_y.3"},
		"no pages": {func(m fstest.MapFS) { clear(m); m["README"] = file("x") }, "holds none"},
	} {
		t.Run(name, func(t *testing.T) {
			m := testPages()
			c.change(m)
			_, err := ReadPages(m)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := ReadPages(os.DirFS(t.TempDir() + "/gone"))
	require.ErrorContains(t, err, "run make headers")
}
