// SPDX-License-Identifier: BSD-2-Clause

package resource

import "github.com/goverbs/goverbs/generated/ibv"

// Region is registered memory.
type Region struct {
	Memory
	Windows int // number of windows bound to it
}

// Window is a memory window.
type Window struct {
	Memory
	Kind   ibv.MWType
	Region *Region // that it is bound to, or nil
}

// User is a queue pair to which windows of type 2 are bound, for its peers' use only.
type User struct {
	Windows int // number of windows bound to it
}

// Binding is the target of a window bind.
type Binding struct {
	Region          *Region // nil: none
	Address, Length uint64
	Access          ibv.AccessFlags
	Key             uint32 // its low byte becomes that of the window's key; the rest is ignored
}

// QueueAccess are region flags that programs also set on queue pairs and windows, as Soft-RoCE allows. There they have
// no effect.
const QueueAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_MW_BIND | ibv.ACCESS_ON_DEMAND |
	ibv.AccessFlags(ibv.ACCESS_OPTIONAL_RANGE)

// windowAccess are the flags that windows can have.
const windowAccess = QueueAccess | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
	ibv.ACCESS_ZERO_BASED

// NewWindow initializes an unbound window and adds its key.
func (k *Keys) NewWindow(w *Window, d *Domain, kind ibv.MWType) {
	*w = Window{Memory: Memory{Domain: d, Window: w}, Kind: kind}
	k.Add(&w.Memory)
}

// Bind binds a window for a user of a domain, and reports whether that is allowed. Binding a window of type 1 to 0
// bytes unbinds it.
func (k *Keys) Bind(w *Window, b *Binding, d *Domain, u *User) bool {
	if w.Key == 0 || k.Get(w.Key) != &w.Memory || w.Domain != d { // destroyed since the post
		return false
	}
	if w.Kind == ibv.MW_TYPE_1 && b.Length == 0 {
		w.Unbind()
		w.rename(b.Key)
		return true
	}
	const writes = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_ATOMIC
	switch m := b.Region; {
	case m == nil || m.Domain != w.Domain || k.Get(m.Key) != &m.Memory,
		m.Access&ibv.ACCESS_MW_BIND == 0 || m.Access&ibv.ACCESS_ZERO_BASED != 0,
		b.Access&^windowAccess != 0 || b.Access&writes != 0 && m.Access&ibv.ACCESS_LOCAL_WRITE == 0,
		w.Kind == ibv.MW_TYPE_2 && (w.Region != nil || b.Length == 0 || uint8(b.Key) == uint8(w.Key)):
		return false
	}
	place, ok := b.Region.Locate(b.Address, b.Length, 0)
	if !ok {
		return false
	}
	w.Unbind()
	w.rename(b.Key)
	w.Region, w.Start, w.Length, w.Base, w.Access = b.Region, b.Address, b.Length, place.Base, b.Access
	if b.Access&ibv.ACCESS_ZERO_BASED != 0 {
		w.Start = 0
	}
	w.Region.Windows++
	if w.Kind == ibv.MW_TYPE_2 {
		w.User = u
		u.Windows++
	}
	return true
}

// Unbind revokes the access that the window grants.
func (w *Window) Unbind() {
	if w.Region != nil {
		w.Region.Windows--
		w.Region = nil
	}
	if w.User != nil {
		w.User.Windows--
		w.User = nil
	}
	w.Start, w.Length, w.Base, w.Access = 0, 0, 0, 0
}

// rename changes the low byte of the key.
func (w *Window) rename(key uint32) { w.Key = w.Key&^0xff | key&0xff }

// Bound returns the window of type 2 with a key that is bound to a user, or nil.
func (k *Keys) Bound(key uint32, u *User) *Window {
	if m := k.Get(key); m != nil && m.User == u {
		return m.Window
	}
	return nil
}
