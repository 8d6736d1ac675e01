// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// member is a named member of a record on one target, with its path and offset from the outermost record.
type member struct {
	path   string // as in C: without unnamed structures and unions
	field  *model.Field
	offset int64
	size   int64
	arm    bool // a union member, which shares its bytes
}

// members lists the named members of a record, including those of nested untagged structures and unions. The members of
// a nested tagged one are listed with that record.
func members(rec *model.Record, target string) []member {
	var all []member
	var visit func(rec *model.Record, prefix string, base int64)
	visit = func(rec *model.Record, prefix string, base int64) {
		for i := range rec.Fields {
			f := &rec.Fields[i]
			offset := base + f.Offset.On(target)
			inner := prefix
			if f.Name != "" {
				all = append(all, member{path: prefix + f.Name, field: f, offset: offset, size: f.Size.On(target),
					arm: rec.Kind == model.Union})
				inner = prefix + f.Name + strings.Repeat("[0]", len(f.Dims)) + "."
			}
			if f.Record != nil {
				visit(f.Record, inner, offset)
			}
		}
	}
	visit(rec, "", 0)
	return all
}
