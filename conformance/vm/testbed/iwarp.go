// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	cm "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// IWARP reports whether the guest's device is Soft-iWARP. Only the connection manager connects its queue pairs.
func IWARP() bool { return strings.HasPrefix(os.Getenv(wire.EnvDevice), "siw") }

// SkipIWARP skips a test of what iWARP lacks.
func SkipIWARP(t testing.TB, reason string) {
	t.Helper()
	if IWARP() {
		t.Skip("iWARP: " + reason)
	}
}

// managed is a connection between two queue pairs that exist. Its identifiers share an event channel.
type managed struct {
	*Testbed
	channel *rdmacm.EventChannel
}

// managerPort is the port on which the next connection is made.
var managerPort uint16 = 20000

// connectManaged connects two queue pairs with the connection manager. The connection ends before they are destroyed.
func (r *Testbed) connectManaged(a, b *ibv.QP) {
	r.t.Helper()
	r.Init(a)
	r.Init(b)
	backend, err := Backend()
	require.NoError(r.t, err)
	channel, err := cm.From{Backend: backend}.CreateEventChannel()
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, cm.DestroyEventChannel(channel)) })
	c := &managed{r, channel}
	managerPort++
	at := Records[rdmacm.SockaddrIn](r, 1)
	at[0].SinFamily = syscall.AF_INET
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&at[0].SinPort))[:], managerPort)
	copy((*[4]byte)(unsafe.Pointer(&at[0].SinAddr))[:], net.ParseIP(os.Getenv(wire.EnvAddress)).To4())
	address := (*rdmacm.Sockaddr)(unsafe.Pointer(&at[0]))

	listener := c.id()
	require.NoError(r.t, cm.BindAddr(listener, address))
	require.NoError(r.t, cm.Listen(listener, 1))
	param := &Records[rdmacm.ConnParam](r, 1)[0]
	*param = rdmacm.ConnParam{ResponderResources: 4, InitiatorDepth: 4, QPNum: a.QPNum}
	for try := 1; ; try++ {
		id := c.id()
		require.NoError(r.t, cm.ResolveAddr(id, nil, address, 2000))
		c.event(rdmacm.CM_EVENT_ADDR_RESOLVED)
		require.NoError(r.t, cm.ResolveRoute(id, 2000))
		c.event(rdmacm.CM_EVENT_ROUTE_RESOLVED)
		id.QP = ibv.PtrTo(a)
		err := cm.Connect(id, param)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && try < 5 {
			continue // TCP still uses the port that the connection manager chose
		}
		require.NoError(r.t, err)
		break
	}
	peer := c.event(rdmacm.CM_EVENT_CONNECT_REQUEST)
	r.t.Cleanup(func() { c.destroy(peer) })
	peer.QP = ibv.PtrTo(b)
	param.QPNum = b.QPNum
	require.NoError(r.t, cm.Accept(peer, param))
	for range 2 { // of both ends, in any order
		c.event(rdmacm.CM_EVENT_ESTABLISHED)
	}
}

// id creates an identifier.
func (c *managed) id() *rdmacm.CMID {
	c.t.Helper()
	id := &Records[ibv.Ptr[rdmacm.CMID]](c.Testbed, 1)[0]
	require.NoError(c.t, cm.CreateID(c.channel, id, 0, rdmacm.PS_TCP))
	c.t.Cleanup(func() { c.destroy(id.Deref()) })
	return id.Deref()
}

// destroy destroys an identifier, but not its queue pair, which it does not own.
func (c *managed) destroy(id *rdmacm.CMID) {
	id.QP = 0
	require.NoError(c.t, cm.DestroyID(id))
}

// event waits for an event of that type and returns its identifier.
func (c *managed) event(want rdmacm.CMEventType) *rdmacm.CMID {
	c.t.Helper()
	var id *rdmacm.CMID
	e := &Records[ibv.Ptr[rdmacm.CMEvent]](c.Testbed, 1)[0]
	err := Within(want.String(), func() error {
		err := cm.GetCMEvent(c.channel, e)
		if err == nil {
			got := e.Deref()
			id = got.ID.Deref()
			require.Equal(c.t, want, got.Event, "status %d", got.Status)
			err = cm.AckCMEvent(got)
		}
		return err
	})
	require.NoError(c.t, err)
	return id
}
