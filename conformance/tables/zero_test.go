// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// TestZeroIsInvalid checks that the result of a lookup for an unknown value is not a valid answer.
func TestZeroIsInvalid(t *testing.T) {
	event, status, cm := ibv.AsyncEventMeaning(99), ibv.WCStatusMeaning(99), rdmacm.EventMeaning(99)
	assert.Equal(t, ibv.AsyncElementUnknown, event.Element)
	assert.Equal(t, ibv.AsyncSeverityUnknown, event.Severity)
	assert.Equal(t, ibv.WCDetectorUnknown, status.Detector)
	assert.Equal(t, rdmacm.EventSideUnknown, cm.Side)
	assert.Equal(t, rdmacm.EventParamNone, cm.Param)
	assert.Empty(t, cm.Before)
	assert.Equal(t, ibv.WCKindError, ibv.WCKindOf(99, ibv.QPT_RC).Kind)
	assert.Equal(t, ibv.AccessUseNone, ibv.AccessOfQP(99).Use)
	assert.Equal(t, ibv.AnswerUnspecified, ibv.AccessFlag(ibv.AccessUseNone, ibv.ACCESS_LOCAL_WRITE).Answer)
	assert.Equal(t, ibv.AnswerUnspecified, ibv.AccessRequired(ibv.AccessUseNone).Answer)
}

// TestEnumsBeginWithNone checks the same for every enumeration in the tables, and that no cell with answer yes has its
// first item, except EventParamNone, which means that no member is valid.
func TestEnumsBeginWithNone(t *testing.T) {
	seen := map[string]bool{}
	for name, g := range factGrids(t) {
		for i, v := range g.Values {
			if v.Kind != rules.One || strings.HasPrefix(v.Type, "enum ") {
				continue
			}
			for _, typ := range g.Own {
				if typ.Name != v.Type {
					continue
				}
				seen[typ.Name] = true
				first := typ.Items[0]
				none := strings.HasSuffix(first.Go, "None") || strings.HasSuffix(first.Go, "Unknown") ||
					first.Go == "WCKindError"
				assert.True(t, none, "%s begins with %s", typ.Name, first.Go)
				if first.Go == "EventParamNone" {
					continue
				}
				for n := range g.Cells {
					for _, word := range g.Cells[n].Values[i] {
						assert.NotEqual(t, first.Prints, word, "%s: %v", name, g.Combination(n))
					}
				}
			}
		}
	}
	for _, typ := range []string{"AsyncElement", "AsyncSeverity", "EventSide", "EventParam", "WCKind", "WCDetector",
		"AccessUse"} {
		assert.True(t, seen[typ], "%s", typ)
	}
}
