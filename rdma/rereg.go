// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// Rereg changes the region: its memory (REREG_MR_CHANGE_TRANSLATION), its protection domain (REREG_MR_CHANGE_PD) or its
// access (REREG_MR_CHANGE_ACCESS), selected by flags. Arguments that are not selected may be nil or 0. The new memory
// is pinned as by RegMR, and the old memory is released. One call runs at a time. Other goroutines that ask for keys
// and entries during the call get either the old or the new ones. The keys may change: no work request may be using the
// region, here or at a peer.
//
// If C fails, the error reports whether the region is unchanged, has changed, or is no longer valid and must be closed.
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
		return fmt.Sprintf("flags are %v; valid flags are %v, %v and %v", flags, ibv.REREG_MR_CHANGE_TRANSLATION,
			ibv.REREG_MR_CHANGE_PD, ibv.REREG_MR_CHANGE_ACCESS)
	case flags&ibv.REREG_MR_CHANGE_PD != 0 && pd == nil:
		return "IBV_REREG_MR_CHANGE_PD needs a protection domain"
	case flags&ibv.REREG_MR_CHANGE_TRANSLATION != 0 && len(b) == 0:
		return "IBV_REREG_MR_CHANGE_TRANSLATION needs memory"
	case flags&ibv.REREG_MR_CHANGE_ACCESS != 0:
		return refusal.Access(ibv.AccessReregMR, access)
	case access != 0:
		return fmt.Sprintf("access is %v, which needs IBV_REREG_MR_CHANGE_ACCESS", access)
	}
	return ""
}

// setRegistration records C's change of the region. pinned is its new memory, or nil.
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

// alsoPinned keeps pinned the new memory that the region may already use, in addition to its old memory.
func (r *MR) alsoPinned(p *Pinned) {
	if r.pinned == nil {
		r.pinned = p
		return
	}
	r.pinned.also = append(r.pinned.also, p)
}

func reregReason(code ibv.ReregMRErrCode) string {
	switch code {
	case 0, ibv.REREG_MR_ERR_INPUT: // 0: the call was not made
		return "the region is unchanged"
	case ibv.REREG_MR_ERR_DONT_FORK_NEW:
		return fmt.Sprintf("%v: the region is unchanged: its new memory could not be protected from a fork", code)
	case ibv.REREG_MR_ERR_DO_FORK_OLD:
		return fmt.Sprintf("%v: the region was changed; a child process lacks its old memory after a fork", code)
	}
	return fmt.Sprintf("%v: the region is no longer valid, and has to be closed", code)
}
