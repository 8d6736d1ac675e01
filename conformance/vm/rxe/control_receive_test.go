// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

var receiveControls = []control{
	{verb: "ibv_create_srq", what: works, call: createSRQ(ibv.SRQAttr{MaxWR: 8, MaxSGE: 1})},
	{verb: "ibv_create_srq", what: "more work requests than max_srq_wr",
		call: createSRQ(ibv.SRQAttr{MaxWR: 1 << 30, MaxSGE: 1})},
	{verb: "ibv_create_srq", what: "more entries than max_srq_sge",
		call: createSRQ(ibv.SRQAttr{MaxWR: 8, MaxSGE: 1 << 16})},
	{verb: "ibv_create_srq", what: "no work requests", call: createSRQ(ibv.SRQAttr{MaxSGE: 1})},
	{verb: "ibv_create_srq_ex", what: works, call: createSRQEx(func(*ibv.SRQInitAttrEx) {})},
	{verb: "ibv_create_srq_ex", what: "more work requests than max_srq_wr",
		call: createSRQEx(func(a *ibv.SRQInitAttrEx) { a.Attr.MaxWR = 1 << 30 })},
	{verb: "ibv_create_srq_ex", what: "no protection domain",
		call: createSRQEx(func(a *ibv.SRQInitAttrEx) { a.CompMask &^= ibv.SRQ_INIT_ATTR_PD })},
	{verb: "ibv_create_srq_ex", what: "unknown bit in comp_mask",
		call: createSRQEx(func(a *ibv.SRQInitAttrEx) { a.CompMask |= 1 << 20 })},
	{verb: "ibv_create_srq_ex", what: "no such type", call: createSRQEx(func(a *ibv.SRQInitAttrEx) { a.SRQType = 7 })},
	{verb: "ibv_create_srq_ex", what: "XRC",
		call: createSRQEx(func(a *ibv.SRQInitAttrEx) { a.SRQType = ibv.SRQT_XRC })},
	{verb: "ibv_query_srq", what: works, call: func(r *testbed.Testbed) error {
		attr := new(ibv.SRQAttr)
		err := verbs.QuerySRQ(r.SRQ(8), attr)
		if err == nil && (attr.MaxWR < 8 || attr.MaxSGE < 1 || attr.SRQLimit != 0) {
			return failed("other attributes")
		}
		return err
	}},
	{verb: "ibv_query_srq", what: "any", why: "the page documents none, and it has no argument that can be wrong"},
	{verb: "ibv_modify_srq", what: works, call: modifySRQ(ibv.SRQAttr{SRQLimit: 4}, ibv.SRQ_LIMIT)},
	{verb: "ibv_modify_srq", what: "limit above the size",
		call: modifySRQ(ibv.SRQAttr{SRQLimit: 1 << 20}, ibv.SRQ_LIMIT)},
	{verb: "ibv_modify_srq", what: "larger, which is optional",
		call: modifySRQ(ibv.SRQAttr{MaxWR: 64}, ibv.SRQ_MAX_WR)},
	{verb: "ibv_modify_srq", what: "larger than max_srq_wr",
		call: modifySRQ(ibv.SRQAttr{MaxWR: 1 << 30}, ibv.SRQ_MAX_WR)},
	{verb: "ibv_modify_srq", what: "smaller than the limit",
		call: modifySRQ(ibv.SRQAttr{SRQLimit: 4}, ibv.SRQ_LIMIT, ibv.SRQAttr{MaxWR: 1})},
	{verb: "ibv_modify_srq", what: "smaller than the receives in it", call: func(r *testbed.Testbed) error {
		srq, b := r.SRQ(8), r.Buffer(64, local)
		for range 6 {
			r.RecvSRQ(srq, 1, b.SGE(0, 8))
		}
		return verbs.ModifySRQ(srq, &ibv.SRQAttr{MaxWR: 2}, ibv.SRQ_MAX_WR)
	}},
	{verb: "ibv_modify_srq", what: "unknown attribute", call: modifySRQ(ibv.SRQAttr{}, 1<<20)},
	{verb: "ibv_destroy_srq", what: works, call: createSRQ(ibv.SRQAttr{MaxWR: 8, MaxSGE: 1})},
	{verb: "ibv_destroy_srq", what: "queue pairs left", call: func(r *testbed.Testbed) error {
		srq := r.SRQ(8)
		r.SharingQP(ibv.QPT_RC, r.CQ(8), srq)
		return verbs.DestroySRQ(srq)
	}},
}

func createSRQ(attr ibv.SRQAttr) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		return created(r, verbs.DestroySRQ)(verbs.CreateSRQ(r.PD, &ibv.SRQInitAttr{Attr: attr}))
	}
}

func createSRQEx(change func(*ibv.SRQInitAttrEx)) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		attr := &ibv.SRQInitAttrEx{
			Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, CompMask: ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_TYPE,
			SRQType: ibv.SRQT_BASIC, PD: ibv.PtrTo(r.PD),
		}
		change(attr)
		return created(r, verbs.DestroySRQ)(verbs.CreateSRQEx(r.Context, attr))
	}
}

// modifySRQ modifies a queue of 8 entries. If then is given, it is applied as well, and its result is returned.
func modifySRQ(attr ibv.SRQAttr, mask ibv.SRQAttrMask, then ...ibv.SRQAttr) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		srq := r.SRQ(8)
		err := verbs.ModifySRQ(srq, &attr, mask)
		for i := range then {
			r.Check(err)
			err = verbs.ModifySRQ(srq, &then[i], ibv.SRQ_MAX_WR)
		}
		if err != nil {
			return err
		}
		now := new(ibv.SRQAttr)
		r.Check(verbs.QuerySRQ(srq, now))
		if mask == ibv.SRQ_LIMIT && then == nil && now.SRQLimit != attr.SRQLimit || mask == ibv.SRQ_MAX_WR &&
			now.MaxWR < attr.MaxWR {
			return failed("nothing changed")
		}
		return nil
	}
}
