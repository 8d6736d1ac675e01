// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestQPModify checks that package rdma performs every transition of the table, with each optional attribute that
// Soft-RoCE accepts, and that it rejects a transition without a required attribute with an error that names the
// attribute.
func TestQPModify(t *testing.T) {
	r := testbed.Open(t)
	device, err := rdma.Open(testbed.DeviceName())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, device.Close()) })
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pd.Close()) })
	cq, err := device.CreateCQ(128, nil, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cq.Close()) })

	try := func(kind ibv.QPType, from, to ibv.QPState, desc string, mask ibv.QPAttrMask) (err error) {
		t.Run(strings.Join([]string{trim(kind.String()), trim(from.String()), trim(to.String()), desc}, "/"),
			func(t *testing.T) {
				qp, failure := pd.CreateQP(&ibv.QPInitAttr{QPType: kind, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
					Cap: testbed.Caps},
					rdma.QueueOptions{})
				require.NoError(t, failure)
				defer func() { require.NoError(t, qp.Close()) }()
				r.For(t).Bring(qp.C(), from)
				attr := attributes(r, qp.C(), from, to)
				err = qp.Modify(&attr, mask)
				now, _, failure := qp.Query(ibv.QP_STATE)
				require.NoError(t, failure)
				want := to
				if err != nil {
					want = from
				}
				assert.Equal(t, want, now.QPState)
				assert.Equal(t, want, qp.State())
			})
		return err
	}
	recorded := recordedTransitions(t)
	required, optional := 0, 0
	for _, kind := range creatable {
		for _, from := range states {
			for _, to := range wanted {
				rule := ibv.ModifyQP(kind, from, to)
				all := rule.Required | ibv.QP_STATE
				place := trim(from.String()) + " to " + trim(to.String())
				err := try(kind, from, to, "required", all)
				if rule.Answer != ibv.AnswerYes {
					assert.ErrorIs(t, err, syscall.EINVAL, "%v: %s", kind, place)
					assert.ErrorContains(t, err, place)
					continue
				}
				assert.NoError(t, err, "%v: %s", kind, place)
				for _, one := range flagsOf(rule.Required &^ ibv.QP_STATE) {
					err := try(kind, from, to, "without "+name(one), all&^one)
					assert.ErrorIs(t, err, syscall.EINVAL)
					assert.ErrorContains(t, err, place+" also needs "+one.String(), "%v", kind)
					required++
				}
				for _, one := range flagsOf(rule.Optional &^ ibv.QP_STATE) {
					err := try(kind, from, to, "with "+name(one), all|one)
					key := strings.Join([]string{trim(kind.String()), trim(from.String()), trim(to.String()),
						"with " + name(one)}, "/")
					if recorded != nil {
						assert.Equal(t, recorded[key], errnoName(err), "%s: %v", key, err)
					}
					optional++
				}
			}
		}
	}
	assert.Equal(t, 26, required)
	assert.Greater(t, optional, 40)
}

// recordedTransitions returns the recorded results of ibv_modify_qp, or nil on the software device, for which there are
// none.
func recordedTransitions(t *testing.T) map[string]string {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft {
		return nil
	}
	table, ok, err := results.Read("modify_qp-"+testbed.Kernel(t)+".csv", 4)
	require.NoError(t, err)
	require.True(t, ok)
	all := map[string]string{}
	for _, row := range table.Rows {
		all[strings.Join(row[:4], "/")] = row[4]
	}
	return all
}
