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

// name returns the ID's name for messages: with its addresses, without its device. A closed ID keeps its last name,
// with its device.
func (id *ID) name() string {
	if id.life.TryUse() {
		defer id.done()
		return id.named()
	}
	if noted := id.noted.Load(); noted != nil {
		return noted.text
	}
	return unbound
}

// named is name for an ID that is kept open.
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

// learn records the ID's addresses and its device for String, which does not read C's memory, after every event and
// every call that may have changed them. The caller keeps the ID open and prevents C from taking an event of it, which
// writes them.
func (id *ID) learn() {
	if noted := id.noted.Load(); noted != nil && noted.addr == id.c.Route.Addr && noted.on == id.c.Verbs {
		return
	}
	next := &noted{addr: id.c.Route.Addr, on: id.c.Verbs, text: id.named()}
	if c := next.on.Deref(); c != nil {
		next.text += " on " + deviceName(c)
	}
	id.noted.Store(next)
}

// learnBetweenEvents is learn after a call. The caller holds record.
func (id *ID) learnBetweenEvents() {
	defer id.lockCalls().Unlock()
	id.learn()
}

// noted is the cached String of an ID.
type noted struct {
	addr rdmacm.Addr
	on   ibv.Ptr[ibv.Context]
	text string // "ID 127.0.0.1:7 on soft0"
}

// deviceName returns the result of ibv_get_device_name.
func deviceName(c *ibv.Context) string {
	name, _, _ := bytes.Cut(c.Device.Deref().Name[:], []byte{0})
	return string(name)
}
