package device

import "github.com/goverbs/goverbs/rdma/soft/internal/wire/faulty"

// Faults are what goes wrong on a fabric; soft.Faults explains them.
type Faults = faulty.Faults

// Counters tell what happened on a fabric; soft.Counters explains them.
type Counters struct {
	Lost       uint64
	Duplicates uint64
	NotReady   uint64
}

// Counters are those of the fabric.
func (f *Fabric) Counters() Counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counters
	c.Lost += f.faulty.Lost()
	return c
}

// SetFaults changes what goes wrong from now on.
func (f *Fabric) SetFaults(o Faults) {
	f.mu.Lock()
	defer f.unlock()
	f.setFaults(o)
}

// setFaults lets messages go by the wire on which things go wrong, if any do.
func (f *Fabric) setFaults(o Faults) {
	f.faulty.Set(o)
	if f.wire = f.sound; !f.faulty.Idle() {
		f.wire = f.faulty
	}
}
