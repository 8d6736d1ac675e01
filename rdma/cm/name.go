// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// unbound is the name of an ID without an address.
const unbound = "unbound ID"

// name returns the ID's name for error messages: its addresses, without its device. A closed ID returns its last
// String.
func (id *ID) name() string {
	if id.life.TryUse() {
		defer id.done()
		return id.named()
	}
	if cachedName := id.cachedName.Load(); cachedName != nil {
		return cachedName.text
	}
	return unbound
}

// named is name for a caller that keeps the ID open.
func (id *ID) named() string {
	c := librdmacm.GetPeerAddr(id.c)
	local, peer := addressString(librdmacm.GetLocalAddr(id.c)), addressString(c)
	switch {
	case local != "" && peer != "" && !addrPort(c).Addr().IsUnspecified():
		return "ID " + local + " to " + peer
	case local != "":
		return "ID " + local
	case peer != "" && !addrPort(c).Addr().IsUnspecified():
		return "ID to " + peer
	}
	return unbound
}

// updateName updates the name that String returns. It is called after every event and every call that may have changed the
// ID's addresses or device. The caller keeps the ID open and prevents C from taking an event of it, which would write
// them.
func (id *ID) updateName() {
	if cachedName := id.cachedName.Load(); cachedName != nil && cachedName.addr == id.c.Route.Addr && cachedName.on == id.c.Verbs {
		return
	}
	next := &cachedName{addr: id.c.Route.Addr, on: id.c.Verbs, text: id.named()}
	if c := next.on.Deref(); c != nil {
		next.text += " on " + deviceName(c)
	}
	id.cachedName.Store(next)
}

// updateNameAfterCall is updateName for use after a call. The caller holds record.
func (id *ID) updateNameAfterCall() {
	defer id.lockCalls().Unlock()
	id.updateName()
}

// cachedName is the cached String of an ID.
type cachedName struct {
	addr rdmacm.Addr
	on   ibv.Ptr[ibv.Context]
	text string // "ID 127.0.0.1:7 on soft0"
}

// deviceName returns the device's name, as ibv_get_device_name does.
func deviceName(c *ibv.Context) string {
	name, _, _ := bytes.Cut(c.Device.Deref().Name[:], []byte{0})
	return string(name)
}
