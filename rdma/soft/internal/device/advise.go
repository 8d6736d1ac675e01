package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// adviseMR is the operation advise_mr: what a program is about to use of regions on demand is brought in.
func adviseMR(domain, advice, flags, sges, n, _ uint64) (uint64, runtime.Errno) {
	writes := false
	switch ibv.IBUverbsAdviseMRAdvice(advice) {
	case ibv.ADVISE_MR_ADVICE_PREFETCH, ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
	case ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE:
		writes = true
	default:
		return uint64(eopnotsupp), 0
	}
	if ibv.IBUverbsAdviseMRFlag(flags)&^ibv.ADVISE_MR_FLAG_FLUSH != 0 || uint32(n) == 0 || sges == 0 {
		return uint64(einval), 0
	}
	p := locked[pd](domain)
	if p == nil {
		return uint64(einval), 0
	}
	defer p.fabric().unlock()
	for _, s := range list[ibv.SGE](sges, int(uint32(n))) {
		if errno := p.prefetch(s, writes,
			ibv.IBUverbsAdviseMRAdvice(advice) == ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT); errno != 0 {
			return uint64(errno), 0
		}
	}
	return 0, 0
}

// prefetch brings in a part of a region, unless only what is there already counts.
func (p *pd) prefetch(s ibv.SGE, writes, there bool) runtime.Errno {
	m := p.device.keys.get(s.LKey)
	switch {
	case m == nil:
		return efault
	case m.window != nil:
		return einval
	case m.pd != p.protects():
		return eperm
	}
	place, ok := m.locate(s.Addr, uint64(s.Length), 0)
	switch {
	case !ok, m.access&ibv.ACCESS_ON_DEMAND == 0:
		return efault
	case writes && m.access&ibv.ACCESS_LOCAL_WRITE == 0:
		return eperm
	case there, s.Length == 0:
		return 0
	}
	return accessible(place.Base, place.Length, writes)
}
