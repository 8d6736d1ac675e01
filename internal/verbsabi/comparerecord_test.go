// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/gen/model"
)

// small returns a release with one structure.
func small(release string, size int64, fields ...model.Field) *model.Release {
	return &model.Release{Name: release, Targets: []string{"amd64"},
		Headers: []model.Header{{Name: "infiniband/t.h", Records: []model.Record{
			{Kind: model.Struct, Tag: "t", Size: model.Same(size), Align: model.Same(8), Fields: fields},
		}}}}
}

func member8(name string, offset int64) model.Field { return memberOf("uint64_t", name, offset) }

func memberOf(typ, name string, offset int64) model.Field {
	return model.Field{Name: name, Type: typ, Offset: model.Same(offset), Size: model.Same(8)}
}

// TestCompareRecord: the meaning of layout changes, each shown by a structure. theirs is unknown to the history unless
// it is named there.
func TestCompareRecord(t *testing.T) {
	plain := small("1.0", 16, member8("a", 0), member8("b", 8))
	front := small("2.0", 24, member8("n", 0), member8("a", 8), member8("b", 16))
	further := small("", 32, member8("m", 0), member8("n", 8), member8("a", 16), member8("b", 24))
	held := small("1.0", 16, member8("a", 0), member8("reserved", 8))
	used := small("2.0", 24, member8("a", 0), member8("b", 8), member8("reserved", 16))
	heldFront := small("2.0", 24, member8("n", 0), member8("a", 8), member8("reserved", 16))
	for name, c := range map[string]struct {
		ours, theirs *model.Release
		recorded     []*model.Release
		want         []string
		compatible   bool // all of them
	}{
		"grown at its front without precedent": {
			plain, front, []*model.Release{plain}, []string{
				"record t: size is 24 in these headers, 16 in Go: its size changed and members moved",
				"field t.a: offset is 8 in these headers, 0 in Go: the member moved",
				"field t.b: offset is 16 in these headers, 8 in Go: the member moved",
				"field t.n: only in these headers: these headers are newer",
			}, false,
		},
		"grown at its front with precedent": {
			front, further, []*model.Release{plain, front}, []string{
				"record t: size is 32 in these headers, 24 in Go: grown at its front; offsets are counted from its end",
				"field t.m: only in these headers: these headers are newer",
			}, true,
		},
		"reserved bytes further back": {
			held, used, []*model.Release{held, used}, []string{
				"record t: size is 24 in these headers, 16 in Go: grown at its end; since 2.0",
				"field t.reserved: offset is 16 in these headers, 8 in Go: as in a recorded release; since 1.0",
				"field t.b: only in these headers: of another release than the Go package; since 2.0",
			}, true,
		},
		"reserved bytes of a structure that grew at its front": {
			held, heldFront, []*model.Release{held, heldFront}, []string{
				"record t: size is 24 in these headers, 16 in Go: grown at its front; offsets are counted from its end; since 2.0",
				"field t.n: only in these headers: of another release than the Go package; since 2.0",
			}, true,
		},
		"reserved bytes of another type, and nothing else": {
			held, small("", 16, member8("a", 0), memberOf("__be64", "reserved", 8)), []*model.Release{held}, []string{
				"field t.reserved: type is __be64 in these headers, uint64_t in Go: the type differs",
			}, false,
		},
		"reserved bytes of another type and a new member": {
			held, small("", 24, member8("a", 0), member8("b", 16), memberOf("__be64", "reserved", 8)),
			[]*model.Release{held, used}, []string{
				"record t: size is 24 in these headers, 16 in Go: grown at its end; since 2.0",
				"field t.reserved: type is __be64 in these headers, uint64_t in Go: reserved bytes are now used",
				"field t.b: only in these headers: of another release than the Go package; since 2.0",
			}, true,
		},
		"reserved bytes that were added and removed": {
			small("2.0", 16, member8("a", 0), member8("reserved", 8)),
			small("3.0", 16, member8("a", 0), member8("b", 8)),
			[]*model.Release{small("1.0", 8, member8("a", 0)),
				small("2.0", 16, member8("a", 0), member8("reserved", 8)),
				small("3.0", 16, member8("a", 0), member8("b", 8))},
			[]string{
				"field t.reserved: not in these headers: reserved bytes are now used; since 3.0",
				"field t.b: only in these headers: of another release than the Go package; since 3.0",
			}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			compatible := true
			for _, d := range Compare(c.ours, c.theirs, c.recorded, "amd64") {
				lines = append(lines, d.String())
				compatible = compatible && d.Compatible
			}
			assert.ElementsMatch(t, c.want, lines)
			assert.Equal(t, c.compatible, compatible)
		})
	}
}
