// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/generated/ibv"
)

var measurements = map[string]ibv.Measurement{"6.1": ibv.MeasuredRXE_6_1, "6.12": ibv.MeasuredRXE_6_12,
	"7": ibv.MeasuredRXE_7}

// TestMeasuredMatchesResults compares the generated answers with conformance/vm/results, from which make measure
// PROMOTE=1 generates them.
func TestMeasuredMatchesResults(t *testing.T) {
	require.Len(t, measurements, len(results.Kernels))
	for _, kernel := range results.Kernels {
		on, ok := measurements[kernel]
		require.True(t, ok, kernel)
		for _, verb := range []struct {
			file string
			of   func(ibv.QPType, ibv.WROpcode) (v ibv.Validity, refused, status string)
		}{
			{"post_send", func(qpt ibv.QPType, op ibv.WROpcode) (ibv.Validity, string, string) {
				r := ibv.PostSendMeasured(on, qpt, op)
				return r.Validity, r.Refused, r.Status
			}},
			{"wr_post", func(qpt ibv.QPType, op ibv.WROpcode) (ibv.Validity, string, string) {
				r := ibv.WRPostMeasured(on, qpt, op)
				return r.Validity, r.Refused, r.Status
			}},
		} {
			table, ok, err := results.Read(verb.file+"-"+kernel+".csv", 3)
			require.NoError(t, err)
			require.True(t, ok)
			checked := 0
			for _, row := range table.Rows {
				at := map[string]string{"create": "0"}
				for i, column := range table.Columns {
					at[column] = row[i]
				}
				qpt, op := named(t, "IBV_QPT_"+at["qp_type"]), opcode("IBV_WR_"+at["opcode"])
				if at["flags"] != "SIGNALED" || at["setter"] == "inline" || op == ^ibv.WROpcode(0) {
					continue
				}
				checked++
				where := strings.Join([]string{verb.file, kernel, at["qp_type"], at["opcode"]},
					" ") + ": run make measure PROMOTE=1"
				v, refused, status := verb.of(qpt, op)
				switch {
				case at["create"] != "0":
					assert.Equal(t, []any{ibv.AnswerNo, "create " + at["create"], ""}, []any{v.Answer, refused, status},
						where)
				case at["post"] != "0":
					assert.Equal(t, []any{ibv.AnswerNo, "post " + at["post"], ""}, []any{v.Answer, refused, status},
						where)
				case at["wc_status"] == "SUCCESS":
					assert.Equal(t, []any{ibv.AnswerYes, "", "IBV_WC_SUCCESS"}, []any{v.Answer, refused, status}, where)
				default:
					assert.Equal(t, []any{ibv.AnswerNo, "", "IBV_WC_" + at["wc_status"]},
						[]any{v.Answer, refused, status}, where)
				}
				assert.Contains(t, v.Source, "measured: Soft-RoCE, Linux "+kernel+".", where)
			}
			assert.GreaterOrEqual(t, checked, 39, "%s %s", verb.file, kernel)
		}
	}
}

// TestMeasuredFlags compares answers about send flags with the rows for that flag, if the operation works without it,
// and checks that deviations from the page have a note.
func TestMeasuredFlags(t *testing.T) {
	flags := map[string]ibv.SendFlags{"INLINE": ibv.SEND_INLINE, "FENCE": ibv.SEND_FENCE,
		"SOLICITED": ibv.SEND_SOLICITED, "IP_CSUM": ibv.SEND_IP_CSUM}
	for _, kernel := range results.Kernels {
		on, checked, noted := measurements[kernel], 0, 0
		for _, file := range []string{"post_send", "wr_post"} {
			table, ok, err := results.Read(file+"-"+kernel+".csv", 3)
			require.NoError(t, err)
			require.True(t, ok)
			for _, row := range table.Rows {
				at := map[string]string{"create": "0"}
				for i, column := range table.Columns {
					at[column] = row[i]
				}
				qpt, op := named(t, "IBV_QPT_"+at["qp_type"]), opcode("IBV_WR_"+at["opcode"])
				name, more := strings.CutPrefix(at["flags"], "SIGNALED|")
				if !more || op == ^ibv.WROpcode(0) {
					continue
				}
				flag := flags[name]
				itself, of, documented := ibv.PostSendMeasured(on, qpt, op).Answer,
					ibv.SendFlagMeasured(on, qpt, op, flag).Validity, ibv.SendFlagValidity(qpt, op, flag)
				if file == "wr_post" {
					itself, of, documented = ibv.WRPostMeasured(on, qpt, op).Answer,
						ibv.WRFlagMeasured(on, qpt, op, flag).Validity, ibv.WRFlagValidity(qpt, op, flag)
				}
				want := ibv.AnswerNo
				if itself != ibv.AnswerYes {
					want = ibv.AnswerUnspecified
				} else if at["create"] == "0" && at["post"] == "0" && at["wc_status"] == "SUCCESS" {
					want = ibv.AnswerYes
				}
				assert.Equal(t, want, of.Answer, "%s %s %v %v %s", kernel, file, qpt, op, name)
				disagree := want == ibv.AnswerYes &&
					(documented.Answer == ibv.AnswerNo || documented.Answer == ibv.AnswerNotInVerb)
				assert.Equal(t, disagree, of.Note != "", "%s %s %v %v %s", kernel, file, qpt, op, name)
				checked++
				if disagree {
					noted++
				}
			}
		}
		assert.Greater(t, checked, 200)
		assert.GreaterOrEqual(t, noted, 40)
	}
}

// named returns the queue pair type with a name.
func named(t *testing.T, name string) ibv.QPType {
	t.Helper()
	for _, qpt := range append(documentedTypes, ibv.QPT_XRC_RECV, ibv.QPT_DRIVER) {
		if qpt.String() == name {
			return qpt
		}
	}
	t.Fatalf("no queue pair type %s", name)
	return 0
}

// opcode returns the opcode with a name, or an invalid one.
func opcode(name string) ibv.WROpcode {
	for op := range ibv.WROpcode(256) {
		if op.String() == name {
			return op
		}
	}
	return ^ibv.WROpcode(0)
}

// TestMeasuredDisagreements checks that exactly the cells that differ from the documentation have a note.
func TestMeasuredDisagreements(t *testing.T) {
	differ := 0
	for _, on := range measurements {
		for qpt := range ibv.QPType(256) {
			for op := range ibv.WROpcode(256) {
				for _, c := range []struct{ documented, measured ibv.Validity }{
					{ibv.PostSendValidity(qpt, op), ibv.PostSendMeasured(on, qpt, op).Validity},
					{ibv.WRPost(qpt, op).Validity, ibv.WRPostMeasured(on, qpt, op).Validity},
				} {
					yes := c.documented.Answer == ibv.AnswerYes || c.documented.Answer == ibv.AnswerNeedsCapability
					no := c.documented.Answer == ibv.AnswerNo || c.documented.Answer == ibv.AnswerNotInVerb
					disagree := yes && c.measured.Answer == ibv.AnswerNo || no && c.measured.Answer == ibv.AnswerYes
					assert.Equal(t, disagree, c.measured.Note != "", "%v: %v on %v", on, op, qpt)
					if disagree {
						differ++
					}
				}
			}
		}
	}
	assert.Equal(t, 3*15+3*16+2, differ, "rows of gen/rules/measured.txt, by cell")
	flush := ibv.WRPostMeasured(ibv.MeasuredRXE_6_1, ibv.QPT_RC, ibv.WR_FLUSH)
	assert.Equal(t, "create EOPNOTSUPP", flush.Refused)
	assert.Contains(t, flush.Note, "with rdma-core 56.1 on Linux 6.12 they work")
	assert.Equal(t, ibv.AnswerYes, ibv.WRPostMeasured(ibv.MeasuredRXE_6_12, ibv.QPT_RC, ibv.WR_FLUSH).Answer)
}

func TestMeasuredUnknown(t *testing.T) {
	assert.Equal(t, "rxe 6.12", ibv.MeasuredRXE_6_12.String())
	assert.Equal(t, ibv.AnswerUnspecified, ibv.PostSendMeasured(99, ibv.QPT_RC, ibv.WR_SEND).Answer)
	assert.Equal(t, ibv.AnswerUnspecified, ibv.PostSendMeasured(ibv.MeasuredRXE_7, 0, ibv.WR_SEND).Answer)
	assert.Equal(t, ibv.AnswerUnspecified, ibv.WRPostMeasured(ibv.MeasuredRXE_7, ibv.QPT_RC, 99).Answer)
	assert.Equal(t, ibv.AnswerUnspecified, ibv.WRPostMeasured(ibv.MeasuredRXE_7, ibv.QPT_RC, ibv.WR_DRIVER1).Answer,
		"there is no builder to measure")
	var post ibv.PostSendResult
	var wr ibv.WRPostResult
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		post = ibv.PostSendMeasured(ibv.MeasuredRXE_6_1, ibv.QPT_UC, ibv.WR_LOCAL_INV)
		post = ibv.PostSendMeasured(99, ibv.QPT_UC, ibv.WR_LOCAL_INV)
		wr = ibv.WRPostMeasured(ibv.MeasuredRXE_7, ibv.QPT_RC, ibv.WR_FLUSH)
	}))
	_, _ = post, wr
}
