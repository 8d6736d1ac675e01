// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// Rereg changes the properties of the region that flags selects: its memory (REREG_MR_CHANGE_TRANSLATION), its
// protection domain (REREG_MR_CHANGE_PD) and its access (REREG_MR_CHANGE_ACCESS). Arguments that are not selected may
// be nil; access must then be 0. Rereg pins the new memory like RegMR and releases the old memory. Concurrent calls are
// serialized. During the call, the region's getters return consistently either the old or the new values. The keys may
// change, so no work request may use the region, locally or at a peer.
//
// If C fails, the error states whether the region is unchanged, has changed, or is no longer valid and must be closed.
//
// C: ibv_rereg_mr
//
// Man: ibv_rereg_mr(3)
func (r *MR) Rereg(flags ibv.ReregMRFlags, pd *PD, b []byte, access ibv.AccessFlags) error {
	const verb = "ibv_rereg_mr"
	if reason := reregRefused(flags, pd, b, access); reason != "" {
		return invalid(verb, r.name, "%s", reason)
	}
	holds := []*object{&r.object}
	if flags&ibv.REREG_MR_CHANGE_PD != 0 {
		holds = append(holds, &pd.object)
	}
	if err := useAll(verb, holds...); err != nil {
		return err
	}
	defer doneAll(holds...)
	r.changes.Lock()
	defer r.changes.Unlock()
	next := *r.now.Load()
	var domain *ibv.PD
	if flags&ibv.REREG_MR_CHANGE_PD != 0 {
		if pd.device != next.pd.device {
			return invalid(verb, r.name, "%s belongs to another device", pd.name)
		}
		next.pd, domain = pd, pd.c
	}
	var pinned *Pinned
	if flags&ibv.REREG_MR_CHANGE_TRANSLATION != 0 {
		pinned = Pin(b)
		next.bytes, next.region = b, pinned.Region(0)
	}
	code, err := libibverbs.ReregMR(r.c, flags, domain, uintptr(next.region.Address), next.region.Length, access)
	switch {
	case err == nil || code == ibv.REREG_MR_ERR_DO_FORK_OLD:
		r.setRegistration(&next, pinned)
	case pinned == nil:
	case code == 0 || code == ibv.REREG_MR_ERR_INPUT || code == ibv.REREG_MR_ERR_DONT_FORK_NEW:
		pinned.Unpin()
	default:
		r.alsoPinned(pinned)
	}
	return explain(verb, r.name, reregReason(code), err)
}

// reregRefused returns the reason why the arguments are invalid, or "".
func reregRefused(flags ibv.ReregMRFlags, pd *PD, b []byte, access ibv.AccessFlags) string {
	switch {
	case flags == 0 || flags&^ibv.REREG_MR_FLAGS_SUPPORTED != 0:
		return fmt.Sprintf("invalid flags %v; valid flags are %v, %v and %v", flags, ibv.REREG_MR_CHANGE_TRANSLATION,
			ibv.REREG_MR_CHANGE_PD, ibv.REREG_MR_CHANGE_ACCESS)
	case flags&ibv.REREG_MR_CHANGE_PD != 0 && pd == nil:
		return "IBV_REREG_MR_CHANGE_PD requires a protection domain"
	case flags&ibv.REREG_MR_CHANGE_TRANSLATION != 0 && len(b) == 0:
		return "IBV_REREG_MR_CHANGE_TRANSLATION requires memory"
	case flags&ibv.REREG_MR_CHANGE_ACCESS != 0:
		return refusal.Access(ibv.AccessReregMR, access)
	case access != 0:
		return fmt.Sprintf("access is %v, but flags lack IBV_REREG_MR_CHANGE_ACCESS", access)
	}
	return ""
}

// setRegistration records a successful change of the region. pinned is its new memory, or nil.
func (r *MR) setRegistration(next *registration, pinned *Pinned) {
	if pinned != nil {
		r.releaseMemory()
		r.pinned = pinned
	}
	if old := r.now.Load().pd; next.pd != old {
		r.life.Join(&next.pd.life)
		r.life.Leave(&old.life)
	}
	next.region.LKey, next.rkey = r.c.LKey, r.c.RKey
	r.now.Store(next)
}

// alsoPinned keeps new memory pinned in addition to the old, because after a failure the region may use either.
func (r *MR) alsoPinned(p *Pinned) {
	if r.pinned == nil {
		r.pinned = p
		return
	}
	r.pinned.also = append(r.pinned.also, p)
}

func reregReason(code ibv.ReregMRErrCode) string {
	switch code {
	case 0, ibv.REREG_MR_ERR_INPUT: // 0: C was not called
		return "the region is unchanged"
	case ibv.REREG_MR_ERR_DONT_FORK_NEW:
		return fmt.Sprintf("%v: the region is unchanged; its new memory could not be protected from fork", code)
	case ibv.REREG_MR_ERR_DO_FORK_OLD:
		return fmt.Sprintf("%v: the region was changed; child processes of a fork lack its old memory", code)
	}
	return fmt.Sprintf("%v: the region is no longer valid: close it", code)
}
