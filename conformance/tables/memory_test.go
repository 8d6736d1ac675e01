// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
)

const (
	localWrite  = ibv.ACCESS_LOCAL_WRITE
	remoteWrite = ibv.ACCESS_REMOTE_WRITE
	remoteRead  = ibv.ACCESS_REMOTE_READ
	zeroBased   = ibv.ACCESS_ZERO_BASED
	onDemand    = ibv.ACCESS_ON_DEMAND
	hugePages   = ibv.ACCESS_HUGETLB
)

// TestCheckAccess tests sets of flags, and the reported flag.
func TestCheckAccess(t *testing.T) {
	for _, c := range []struct {
		use   ibv.AccessUse
		flags ibv.AccessFlags
		want  ibv.Answer
		flag  ibv.AccessFlags
	}{
		{ibv.AccessRegMR, 0, ibv.AnswerYes, 0},
		{ibv.AccessRegMR, localWrite | remoteWrite | remoteRead, ibv.AnswerYes, localWrite},
		{ibv.AccessRegMR, remoteRead, ibv.AnswerYes, remoteRead},
		{ibv.AccessRegMR, remoteWrite, ibv.AnswerNo, remoteWrite},
		{ibv.AccessRegMR, remoteRead | ibv.ACCESS_REMOTE_ATOMIC, ibv.AnswerNo, ibv.ACCESS_REMOTE_ATOMIC},
		{ibv.AccessRegMR, localWrite | ibv.ACCESS_REMOTE_ATOMIC, ibv.AnswerNeedsCapability, ibv.ACCESS_REMOTE_ATOMIC},
		{ibv.AccessRegMR, localWrite | ibv.ACCESS_MW_BIND | ibv.ACCESS_RELAXED_ORDERING, ibv.AnswerNeedsCapability,
			ibv.ACCESS_MW_BIND},
		{ibv.AccessRegMR, hugePages, ibv.AnswerNo, hugePages},
		{ibv.AccessRegMR, hugePages | onDemand, ibv.AnswerNeedsCapability, onDemand},
		{ibv.AccessRegMRIOVA, ibv.ACCESS_FLUSH_GLOBAL | ibv.ACCESS_FLUSH_PERSISTENT, ibv.AnswerNeedsCapability,
			ibv.ACCESS_FLUSH_GLOBAL},
		{ibv.AccessRegMR, localWrite | 1<<27, ibv.AnswerUnspecified, 1 << 27},
		{ibv.AccessRegMR, remoteWrite | 1<<27, ibv.AnswerNo, remoteWrite},
		{ibv.AccessReregMR, remoteWrite, ibv.AnswerNo, remoteWrite},
		{ibv.AccessRegDMABufMR, localWrite | remoteWrite | ibv.ACCESS_RELAXED_ORDERING, ibv.AnswerYes, localWrite},
		{ibv.AccessRegDMABufMR, localWrite | onDemand, ibv.AnswerNo, onDemand},
		{ibv.AccessRegDMMR, 0, ibv.AnswerNo, zeroBased},
		{ibv.AccessRegDMMR, localWrite, ibv.AnswerNo, zeroBased},
		{ibv.AccessRegDMMR, zeroBased | localWrite | remoteWrite, ibv.AnswerYes, localWrite},
		{ibv.AccessRegDMMR, zeroBased | remoteWrite, ibv.AnswerNo, remoteWrite},
		{ibv.AccessNullMR, 0, ibv.AnswerYes, 0},
		{ibv.AccessNullMR, localWrite, ibv.AnswerNo, localWrite},
		{ibv.AccessBindMW1, remoteWrite | remoteRead, ibv.AnswerYes, remoteWrite},
		{ibv.AccessBindMW2, localWrite | remoteRead, ibv.AnswerNo, localWrite},
		{ibv.AccessQPRC, localWrite | remoteWrite | remoteRead, ibv.AnswerYes, localWrite},
		{ibv.AccessQPRC, onDemand, ibv.AnswerNo, onDemand},
		{ibv.AccessQPUD, remoteWrite, ibv.AnswerNo, remoteWrite},
		{ibv.AccessQPDriver, 0, ibv.AnswerUnspecified, 0},
		{99, localWrite, ibv.AnswerUnspecified, localWrite},
	} {
		v, flag := ibv.CheckAccess(c.use, c.flags)
		assert.Equal(t, c.want, v.Answer, "%v %v: %s", c.use, c.flags, v.Reason)
		assert.Equal(t, c.flag, flag, "%v %v", c.use, c.flags)
		assert.NotEmpty(t, v.Reason)
		assert.NotEmpty(t, v.Source)
	}
	v, _ := ibv.CheckAccess(ibv.AccessRegMR, remoteWrite)
	assert.Contains(t, v.Reason, "IBV_ACCESS_LOCAL_WRITE must be set too")
	assert.Contains(t, v.Source, "ibv_reg_mr.3")
	assert.Contains(t, ibv.AccessFlag(ibv.AccessBindMW1, zeroBased).Note, "another source says no")
}

// TestAccessNeeds checks that a required flag can itself be set, so that every set can be completed.
func TestAccessNeeds(t *testing.T) {
	for use := range ibv.AccessQPDriver {
		for bit := range 32 {
			rule := ibv.AccessFlag(use, 1<<bit)
			for rest := rule.Needs; rest != 0; rest &= rest - 1 {
				need := ibv.AccessFlag(use, rest&-rest)
				assert.Contains(t, []ibv.Answer{ibv.AnswerYes, ibv.AnswerNeedsCapability}, need.Answer, "%v needs %v",
					use, rest&-rest)
				assert.Contains(t, rule.Reason, (rest & -rest).String(), "%v: the reason names what is needed", use)
			}
		}
	}
}

// TestAccessOfQP looks up rules for flags by queue pair type.
func TestAccessOfQP(t *testing.T) {
	for _, qpt := range append(documentedTypes, ibv.QPT_XRC_RECV, ibv.QPT_DRIVER) {
		v := ibv.AccessOfQP(qpt)
		assert.Equal(t, ibv.AnswerYes, v.Answer)
		assert.Equal(t, qpt.String(), "IBV_QPT_"+strings.TrimSuffix(v.Use.String(), " queue pair"))
	}
}

// TestMemoryWindows checks consistency with the table of ibv_post_send, and that types 1 and 2 are bound in different
// ways.
func TestMemoryWindows(t *testing.T) {
	for _, qpt := range append(documentedTypes, ibv.QPT_XRC_RECV, ibv.QPT_DRIVER) {
		posts := ibv.PostSendValidity(qpt, ibv.WR_BIND_MW).Answer
		bind := ibv.BindMWValidity(ibv.MW_TYPE_2, ibv.BindMWPostSend, qpt)
		assert.Equal(t, posts == ibv.AnswerYes, bind.Answer == ibv.AnswerNeedsCapability, "%v", qpt)
		assert.Equal(t, posts == ibv.AnswerUnspecified, bind.Answer == ibv.AnswerUnspecified, "%v", qpt)
		assert.Equal(t, ibv.AnswerNo, ibv.BindMWValidity(ibv.MW_TYPE_2, ibv.BindMWVerb, qpt).Answer, "%v", qpt)
		for _, path := range []ibv.BindMWPath{ibv.BindMWPostSend, ibv.BindMWWR} {
			assert.NotEqual(t, ibv.AnswerNeedsCapability, ibv.BindMWValidity(ibv.MW_TYPE_1, path, qpt).Answer, "%v %v",
				path, qpt)
		}
	}
	assert.Equal(t, ibv.AnswerNotInVerb, ibv.BindMWValidity(ibv.MW_TYPE_1, ibv.BindMWPostSend, ibv.QPT_RC).Answer)
	assert.Contains(t, ibv.BindMWValidity(ibv.MW_TYPE_1, ibv.BindMWVerb, ibv.QPT_UC).Note, "irdma")
	for how, want := range map[ibv.InvalidateMW][2]ibv.Answer{
		ibv.InvalidateMWBindZero:    {ibv.AnswerYes, ibv.AnswerNo},
		ibv.InvalidateMWLocalInv:    {ibv.AnswerNo, ibv.AnswerYes},
		ibv.InvalidateMWSendWithInv: {ibv.AnswerNo, ibv.AnswerYes},
		ibv.InvalidateMWRebind:      {ibv.AnswerYes, ibv.AnswerNo},
		ibv.InvalidateMWDealloc:     {ibv.AnswerYes, ibv.AnswerYes},
		ibv.InvalidateMWDeregMR:     {ibv.AnswerNo, ibv.AnswerNo},
		ibv.InvalidateMWDestroyQP:   {ibv.AnswerNo, ibv.AnswerNo},
	} {
		assert.Equal(t, want[0], ibv.InvalidateMWValidity(ibv.MW_TYPE_1, how).Answer, "%v", how)
		assert.Equal(t, want[1], ibv.InvalidateMWValidity(ibv.MW_TYPE_2, how).Answer, "%v", how)
	}
}

func TestSharedReceiveQueues(t *testing.T) {
	assert.ElementsMatch(t, []ibv.QPType{ibv.QPT_RC, ibv.QPT_UD}, ibv.SRQAttachQPTypes(ibv.SRQT_BASIC))
	assert.ElementsMatch(t, []ibv.QPType{ibv.QPT_XRC_RECV}, ibv.SRQAttachQPTypes(ibv.SRQT_XRC))
	assert.Equal(t, ibv.AnswerNeedsCapability, ibv.SRQAttachValidity(ibv.SRQT_TM, ibv.QPT_RC).Answer)
	assert.Contains(t, ibv.SRQAttachValidity(ibv.SRQT_BASIC, ibv.QPT_UC).Note, "another source says yes")
	for srq, want := range map[ibv.SRQType][3]ibv.Answer{ // ibv_create_srq, ibv_post_srq_ops, ibv_get_srq_num
		ibv.SRQT_BASIC: {ibv.AnswerYes, ibv.AnswerNo, ibv.AnswerNo},
		ibv.SRQT_XRC:   {ibv.AnswerNotInVerb, ibv.AnswerNo, ibv.AnswerYes},
		ibv.SRQT_TM:    {ibv.AnswerNotInVerb, ibv.AnswerNeedsCapability, ibv.AnswerNo},
	} {
		for i, op := range []ibv.SRQOp{ibv.SRQCreate, ibv.SRQPostOps, ibv.SRQGetNum} {
			assert.Equal(t, want[i], ibv.SRQOpValidity(srq, op).Answer, "%v %v", srq, op)
		}
		for _, op := range []ibv.SRQOp{ibv.SRQPostRecv, ibv.SRQModifyLimit, ibv.SRQQuery, ibv.SRQDestroy} {
			assert.Equal(t, ibv.AnswerYes, ibv.SRQOpValidity(srq, op).Answer, "%v %v", srq, op)
		}
		assert.Contains(t, ibv.SRQOpValidity(srq, ibv.SRQModifyMaxWR).Condition, "IBV_DEVICE_SRQ_RESIZE")
	}
}
