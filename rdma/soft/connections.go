// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Connection is a queue pair of type RC, UC or XRC that has a peer, as it was when Connections looked. Numbers of
// queue pairs and of packets (PSN) have 24 bits, in host byte order.
type Connection struct {
	Device          string
	Type            ibv.QPType
	State           ibv.QPState // RTR or later
	QPN, PeerQPN    uint32
	Local, Peer     netip.Addr // of the packets, or of both devices of one fabric
	MTU             ibv.MTU    // of the path
	NextPSN         uint32     // of the next packet that is sent
	ExpectedPSN     uint32     // of the next packet that is to come
	InFlight        uint32     // packets that were sent, and that no answer came for
	Window          uint32     // most packets that may be in flight now; 0 where no packets travel
	Queued          uint32     // send requests that are posted and not done
	SentAgain       uint64     // packets that were sent again since the queue pair was connected
	CMID            uint32     // communication ID, or 0 if the connection manager does not have the connection
	CMLocal, CMPeer netip.AddrPort
}

// Connections are a table of connections, which String prints.
type Connections []Connection

// Connections are those of the fabric's devices now, in the order of devices and numbers. They may be asked for at any
// time; traffic waits meanwhile.
func (f *Fabric) Connections() (all Connections) {
	if f.fabric == nil {
		return nil
	}
	for _, c := range f.fabric.Connections() {
		all = append(all, Connection(c))
	}
	return all
}

// String returns a table with a line for each connection, below a line with the names of columns. Ends are addresses
// with numbers of queue pairs.
func (all Connections) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tTYPE\tSTATE\tLOCAL\tPEER\tMTU\tNEXT PSN\tEXPECTED\tIN FLIGHT\tQUEUED\tSENT AGAIN\tCM")
	for i := range all {
		c := &all[i]
		ports := "-"
		if c.CMID != 0 {
			ports = fmt.Sprintf("%v %v", c.CMLocal, c.CMPeer)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%v %#x\t%v %#x\t%d\t%#x\t%#x\t%d/%d\t%d\t%d\t%s\n", c.Device,
			strings.TrimPrefix(c.Type.String(), "IBV_QPT_"), strings.TrimPrefix(c.State.String(), "IBV_QPS_"),
			c.Local, c.QPN, c.Peer, c.PeerQPN, 128<<c.MTU, c.NextPSN, c.ExpectedPSN, c.InFlight, c.Window, c.Queued,
			c.SentAgain, ports)
	}
	w.Flush()
	return b.String()
}
