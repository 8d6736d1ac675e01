// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// factTable describes which cells of a table must be specified: all except those that match a row of open. A row has an
// item for each dimension; "" matches every item.
type factTable struct {
	size int
	open [][]string
}

// driver is the queue pair type whose service the provider defines.
const driver = "IBV_QPT_DRIVER"

var factTables = map[string]factTable{
	"access_flags": {165, [][]string{
		{"DRIVER queue pair", ""},
		{"UC queue pair", "IBV_ACCESS_FLUSH_GLOBAL"}, {"UC queue pair", "IBV_ACCESS_FLUSH_PERSISTENT"},
		{"XRC_SEND queue pair", "IBV_ACCESS_FLUSH_GLOBAL"}, {"XRC_SEND queue pair", "IBV_ACCESS_FLUSH_PERSISTENT"},
		{"XRC_RECV queue pair", "IBV_ACCESS_FLUSH_GLOBAL"}, {"XRC_RECV queue pair", "IBV_ACCESS_FLUSH_PERSISTENT"},
	}},
	"access_of_qp":    {7, nil},
	"access_required": {15, [][]string{{"DRIVER queue pair"}}},
	"mw_bind": {42, [][]string{
		{"IBV_MW_TYPE_1", "", driver}, {"IBV_MW_TYPE_2", "ibv_post_send", driver},
		{"IBV_MW_TYPE_2", "ibv_wr_bind_mw", driver},
	}},
	"mw_invalidate": {14, nil},
	"srq_ops":       {27, nil},
	"srq_attach":    {21, [][]string{{"IBV_SRQT_BASIC", driver}, {"IBV_SRQT_TM", driver}}},
	"wc_send":       {14, nil},
	"wc_recv":       {14, [][]string{{"IBV_WR_DRIVER1"}}},
	"wc_srq_ops":    {3, nil},
	"wc_tm":         {6, nil},
	"wc_kinds": {140, [][]string{{"", driver}, {"IBV_WC_DRIVER1", ""}, {"IBV_WC_DRIVER2", ""},
		{"IBV_WC_DRIVER3", ""}}},
	"wc_fields": {152, [][]string{
		{"qp_num", "tag list"},
		{"slid", "received"}, {"sl", "received"}, {"dlid_path_bits", "received"},
		{"slid", "tag message"}, {"sl", "tag message"}, {"dlid_path_bits", "tag message"},
		{"cvlan", "received"}, {"cvlan", "datagram"}, {"cvlan", "tag message"},
		{"flow_tag", "received"}, {"flow_tag", "datagram"}, {"flow_tag", "tag message"},
	}},
	"wc_status": {24, nil},
	"wc_status_state": {336, [][]string{
		{"", "", driver}, {"IBV_WC_FATAL_ERR", "", ""}, {"IBV_WC_RESP_TIMEOUT_ERR", "", ""},
		{"IBV_WC_GENERAL_ERR", "", ""},
		{"IBV_WC_LOC_LEN_ERR", "", "IBV_QPT_RAW_PACKET"}, {"IBV_WC_LOC_QP_OP_ERR", "", "IBV_QPT_RAW_PACKET"},
		{"IBV_WC_LOC_PROT_ERR", "", "IBV_QPT_RAW_PACKET"},
		{"IBV_WC_REM_ABORT_ERR", "receive queue", ""}, {"IBV_WC_REM_ABORT_ERR", "send queue", "IBV_QPT_UC"},
		{"IBV_WC_REM_ABORT_ERR", "send queue", "IBV_QPT_UD"},
		{"IBV_WC_REM_ABORT_ERR", "send queue", "IBV_QPT_RAW_PACKET"},
	}},
	"async_event":      {21, nil},
	"cm_event":         {20, nil},
	"cm_private_data":  {200, nil},
	"cm_private_limit": {15, nil},
}

func recordedRelease(t *testing.T) *model.Release {
	t.Helper()
	text, err := headers.Model(headers.Primary("rdma-core"))
	require.NoError(t, err)
	r, err := model.Decode(headers.Primary("rdma-core")+".json", text)
	require.NoError(t, err)
	return r
}

func factGrids(t *testing.T) map[string]*rules.Grid {
	t.Helper()
	files, err := rules.DefaultGridFiles()
	require.NoError(t, err)
	all := map[string]*rules.Grid{}
	for _, pkg := range []string{"ibv", "rdmacm"} {
		grids, err := rules.ResolveGrids(recordedRelease(t), pkg, files)
		require.NoError(t, err)
		for _, g := range grids {
			all[g.Name] = g
		}
	}
	return all
}

func isOpen(open [][]string, combination []string) bool {
	return slices.ContainsFunc(open, func(o []string) bool {
		for i, name := range o {
			if name != "" && name != combination[i] {
				return false
			}
		}
		return true
	})
}

// TestFactCoverage checks that every cell exists, that required cells are specified, and that all cells have a reason.
// An unnecessary exemption is an error.
func TestFactCoverage(t *testing.T) {
	grids := factGrids(t)
	for name, want := range factTables {
		g := grids[name]
		if !assert.NotNil(t, g, name) {
			continue
		}
		assert.Equal(t, want.size, g.Size(), name)
		assert.Empty(t, g.Silent(), name)
		needed := map[string]bool{}
		for i := range g.Cells {
			cell, combination := &g.Cells[i], g.Combination(i)
			at := name + ": " + strings.Join(combination, " × ")
			if cell.Answer == rules.Unspecified {
				assert.True(t, isOpen(want.open, combination), "%s must have an answer", at)
				for _, o := range want.open {
					if isOpen([][]string{o}, combination) {
						needed[fmt.Sprint(o)] = true
					}
				}
			}
			assertSourced(t, at, cell)
		}
		for _, o := range want.open {
			assert.True(t, needed[fmt.Sprint(o)], "%s: all cells of %v have answers; delete the exemption", name, o)
		}
	}
}

// sourcePrefixes are the valid prefixes of a cell's source.
var sourcePrefixes = []string{"ibv_", "rdma_", "verbs.h", "rdma_cma.h", "rdma-core ", "Linux ", "measured on ",
	"InfiniBand Architecture Specification", "RFC "}

func assertSourced(t *testing.T, at string, cell *rules.Cell) {
	t.Helper()
	assert.NotEmpty(t, cell.Reason, at)
	for source := range strings.SplitSeq(cell.Source, "; ") {
		source = strings.TrimPrefix(source, "include/")
		known := slices.ContainsFunc(append(sourcePrefixes, "libibverbs/", "librdmacm/", "providers/", "drivers/", "rdma/"),
			func(p string) bool { return strings.HasPrefix(source, p) })
		assert.True(t, known, "%s: source %q", at, source)
	}
	if cell.Answer == rules.Capability {
		assert.NotEmpty(t, cell.Condition, at)
	}
}

// TestFactsNotLookedUp counts cells that rely at least partly on a specification that was not available. The number may
// only decrease.
func TestFactsNotLookedUp(t *testing.T) {
	all, some := 0, 0
	for name, g := range factGrids(t) {
		if _, ok := factTables[name]; !ok {
			continue
		}
		for i := range g.Cells {
			sources := strings.Split(g.Cells[i].Source, "; ")
			missing := len(slices.DeleteFunc(slices.Clone(sources),
				func(s string) bool { return !strings.HasSuffix(s, "(not looked up)") }))
			switch {
			case missing == len(sources):
				all++
			case missing > 0:
				some++
			}
		}
	}
	assert.Equal(t, 9, all, "cells without an available source")
	assert.Equal(t, 54, some, "cells with some unavailable sources")
}
